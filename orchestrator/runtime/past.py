"""What rank 0 reads of earlier attempts and saves, to choose when to save.

A small reader of its own: the worker must not depend on what the launcher imports. What is missing,
torn or of another type is passed over.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.interval import Ended, Past
from orchestrator.json_lines import objects
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runtime.environment import Environment, attempt_numbers

# Saves that are looked at: the newest, since storage may have become slower or faster.
NEWEST_SAVES = 20
_TAIL_BYTES = 65536
_LARGE = 1e15


@dataclass(frozen=True, slots=True)
class Cost:
    """A save: for how many seconds it blocked, how long it took, and whether it blocked all along.

    The last save before a stop always does, even where the others are written in the background.
    """

    blocked_s: float
    seconds: float
    blocking: bool = True


def usual(saves: Sequence[Cost]) -> list[Cost]:
    """Return the saves that tell what the next one will cost: those in the background, if any."""
    return [save for save in saves if not save.blocking] or list(saves)


def earlier(env: Environment) -> list[Past]:
    """Return the attempts before this one that tell when they started, oldest first."""
    try:
        numbers = [number for number in attempt_numbers(env.run) if number < env.attempt]
    except OSError:
        return []
    found = (_past(env.run.attempt(number)) for number in numbers)
    return [past for past in found if past is not None]


def saves(run: RunLayout) -> list[Cost]:
    """Return what each of the newest saves has cost, newest last."""
    lines = [line for line in _tail(run.saves) if line.get("kind") == "save"]
    found = [(_number(line, "blocked_s"), line) for line in lines]
    return [
        Cost(blocked_s, _number(line, "seconds") or blocked_s, line.get("blocking") is not False)
        for blocked_s, line in found
        if blocked_s is not None
    ][-NEWEST_SAVES:]


def notice_s(run: RunLayout) -> float | None:
    """Return how long before the end a notice comes, by the run's plan; None where unknown."""
    return _number(_read(run.plan), "notice_s")


def _past(files: AttemptLayout) -> Past | None:
    start, end, status = (_read(path) for path in (files.start, files.exit, files.status))
    progress = _read(files.progress)
    started = _number(start, "started_at")
    heard = (_number(end, "ended_at"), _number(status, "at"), _number(progress, "at"))
    ended = next((at for at in heard if at is not None), None)
    if started is None or ended is None:
        return None
    return Past(max(0.0, ended - started), _ended(_read(files.resume), progress, status))


def _ended(resume: dict[str, Any], progress: dict[str, Any], status: dict[str, Any]) -> Ended:
    first = _number(resume, "step") or 0
    last = max(_number(progress, "step") or 0, _number(status, "step") or 0)
    if last <= first:
        return Ended.IDLE
    return Ended.SAVED if status.get("outcome") in ("stopped", "finished") else Ended.LOST


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(content, dict):
            return content
    return {}


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in the last lines of ``path``."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return objects(lines)


def _number(content: dict[str, Any], key: str) -> float | None:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < _LARGE else None  # NaN is not, either
