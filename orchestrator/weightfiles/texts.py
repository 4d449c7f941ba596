"""The JSON files of a Hugging Face directory, which come from anywhere. Knows no torch."""

import json
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError

# Bytes. The largest index that there is names some 100,000 weights, in 10 MB.
_MOST = 100 << 20


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        SpecError: It is not there, no ordinary file (a pipe would never end), or holds none.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SpecError(f"{path}: is no ordinary file; give the path of one")
        if found.st_size > _MOST:
            raise SpecError(f"{path}: is larger than {_MOST >> 20} MiB; is this the right file?")
        data = parse(path.read_bytes())
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file") from None
    except OSError as problem:
        raise SpecError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise SpecError(f"{path}: cannot be read: {problem}") from None
    return data


def parse(text: bytes, *, once: bool = False) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        ValueError: It is none, nests too deeply, or has a key twice though ``once`` is asked for.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError:
        raise ValueError("it nests too deeply to be real") from None
    if not isinstance(data, dict):
        raise ValueError("it must hold a JSON object")  # noqa: TRY004
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r} stands in it twice")
    return found
