"""Files with one JSON object a line, which several processes may append to, and be killed at."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def append_line(path: Path, line: bytes) -> bool:
    """Append ``line`` in one write(); one that somebody could not finish is closed first.

    Return whether all of it was written. The file is made if need be.

    Raises:
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = b"\n" + line if torn else line
        return os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


def objects(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """Return the JSON objects of ``lines``; what is none, or was cut off, is passed over."""
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            item = json.loads(line)
            if isinstance(item, dict):
                found.append(item)
    return found
