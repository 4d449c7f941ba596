"""Read bounded pieces of files that may be of any size and hold any bytes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_JSON_BYTES = 1 << 20
# How far back the beginning of an attempt is looked for in a log that all attempts share.
_SEARCH_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20
_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 4 << 20
_OVERLAP_BYTES = 256
# The batch shell's own line; a worker's lines begin with torchrun's "[default".
_MARK = re.compile(rb"^\S{10} \S{8} fsdpq: attempt (\d{1,9}): job ", re.MULTILINE)
_OF_WORKERS = "[default"


def tail(path: Path, size: int) -> str:
    """Return the last ``size`` bytes as text, "" where there is no such file."""
    try:
        if not path.is_file():  # to open a pipe would wait for its other end
            return ""
        return _piece(path, max(0, path.stat().st_size - size), size)
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a small JSON file; empty where there is none to be had."""
    try:
        data = json.loads(tail(path, _JSON_BYTES))
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def batch_lines(path: Path, number: int) -> list[str]:
    """Return the lines of attempt ``number`` in a log that all attempts share.

    The workers' own are left out, and the middle of what is very long.
    """
    try:
        if not path.is_file():
            return []
        length = path.stat().st_size
        start, end = _bounds(path, number, length)
        if end - start <= _HEAD_BYTES + _TAIL_BYTES:
            text = _piece(path, start, end - start)
        else:
            head = _piece(path, start, _HEAD_BYTES)
            text = f"{head}\n{_piece(path, end - _TAIL_BYTES, _TAIL_BYTES)}"
    except OSError:
        return []
    return [line for line in text.split("\n") if not line.startswith(_OF_WORKERS)]


def _bounds(path: Path, number: int, length: int) -> tuple[int, int]:
    """Return where attempt ``number`` begins and ends in the log."""
    end = length
    for place, found in _marks(path, length):
        if found > number:
            end = place
        else:
            # Of an older one: it got no further than its number.
            return (place, end) if found == number else (end, end)
    return max(0, length - _SEARCH_BYTES), end


def _marks(path: Path, length: int) -> Iterator[tuple[int, int]]:
    """Yield (place, number) of the beginnings of attempts, the last one first."""
    stop = max(0, length - _SEARCH_BYTES)
    at, seen = length, length
    with path.open("rb") as file:
        while at > stop:
            at = max(stop, at - _BLOCK_BYTES)
            file.seek(at)
            block = file.read(_BLOCK_BYTES + _OVERLAP_BYTES)
            for match in reversed(list(_MARK.finditer(block))):
                # A match at a block's own beginning may be the rest of a line.
                whole = match.start() > 0 or at == 0
                if whole and at + match.start() < seen:
                    seen = at + match.start()
                    yield seen, int(match[1])


def _piece(path: Path, start: int, size: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(max(0, size)).decode("utf-8", "replace")
