"""The one true curve in metrics.jsonl, whose lost attempts have left steps that came again.

An attempt that resumed after step 40 takes back what the attempts before it logged beyond that. So
a line counts if no later attempt began at or before its step; read in order, these lines have each
step once, and steps only grow.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

Line = Mapping[str, Any]
_AT_ONCE = 500


def reach(firsts: Mapping[int, int], *, attempt: int, resumed: int) -> dict[int, int]:
    """Return up to which step the lines of each attempt before ``attempt`` count.

    Args:
        firsts: The first step that each attempt logged.
        attempt: The one that runs now.
        resumed: The step after which it goes on.

    >>> reach({1: 1, 2: 41, 3: 31}, attempt=4, resumed=50)
    {3: 50, 2: 30, 1: 30}
    """
    found, limit = {}, resumed
    for number in sorted((n for n in firsts if n < attempt), reverse=True):
        found[number] = limit
        limit = min(limit, firsts[number] - 1)
    return found


class Curve:
    """Reads the lines that count, from the first one on, as the file grows."""

    def __init__(self, path: Path, *, attempt: int, resumed: int) -> None:
        self._path, self._attempt = path, attempt
        self._offset = 0
        self._reach = reach(_firsts(path), attempt=attempt, resumed=resumed)

    def read(self) -> list[Line] | None:
        """Return the next lines that count, some hundred at most; None if there are no more yet.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                raw = list(_whole_lines(file))
        except FileNotFoundError:  # there was no step yet
            return None
        self._offset += sum(len(text) for text in raw)
        return [line for line in map(_parse, raw) if self._counts(line)] if raw else None

    def _counts(self, line: Line) -> bool:
        number, step = line.get("attempt"), line.get("step")
        if not isinstance(number, int) or not isinstance(step, int):
            return False
        return number == self._attempt or step <= self._reach.get(number, -1)


def _firsts(path: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in map(_parse, file):
            number, step = line.get("attempt"), line.get("step")
            if isinstance(number, int) and isinstance(step, int):
                found.setdefault(number, step)
    return found


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    for _ in range(_AT_ONCE):
        text = file.readline()
        if not text.endswith(b"\n"):  # the writer is not done with it
            return
        yield text


def _parse(text: bytes) -> Line:
    try:
        found = json.loads(text)
    except ValueError:  # what a killed attempt left of a line
        return {}
    return found if isinstance(found, dict) else {}


def numbers(line: Line) -> dict[str, float]:
    """Return what can be drawn as a curve: the numbers of a line but step and time.

    >>> numbers({"step": 3, "at": 5.0, "loss": 2.5, "mfu": None, "save": {"bytes": 8}})
    {'loss': 2.5, 'save/bytes': 8}
    """
    found: dict[str, float] = {}
    for name, value in line.items():
        if name in ("step", "at"):
            continue
        parts = value.items() if isinstance(value, dict) else ()
        found.update({f"{name}/{part}": v for part, v in parts if _is_number(v)})
        if _is_number(value):
            found[name] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
