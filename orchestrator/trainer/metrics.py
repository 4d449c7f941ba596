"""metrics.jsonl: one line a step, from rank 0, over all attempts.

A killed attempt may have logged steps after its last checkpoint; they are trained and logged again,
so the same step can stand here twice, under two attempts. The later attempt is the true one.
"""

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends lines, each in one write, so that no reader sees a line that another one broke."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        if not _ends_with_newline(self._file):  # a killed attempt left half a line
            os.write(self._file, b"\n")

    def write(self, **values: Any) -> None:
        """Append one line. Floats read back bit for bit."""
        os.write(self._file, (json.dumps(values) + "\n").encode())


def _ends_with_newline(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"
