"""The lines that the ledger is made of: metrics.jsonl and saves.jsonl, by attempt. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LARGE = 1e15  # what is larger is neither a step nor a time


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the metrics: when the step ended, how long it took; None where it does not say."""

    step: int
    at: float | None
    step_s: float | None
    blocked_s: float | None
    world_size: int | None


Steps = Mapping[int, Sequence[Step]]
# (When it ended, how long training stood still) of each attempt's saves.
Saves = Mapping[int, Sequence[tuple[float, float]]]


def steps_by_attempt(lines: Iterable[Mapping[str, Any]]) -> Steps:
    """Return the steps of each attempt, in the order they were done; other lines are no steps."""
    found: dict[int, list[Step]] = {}
    for line in lines:
        attempt, step = _whole(line.get("attempt")), _whole(line.get("step"))
        if attempt is None or step is None or line.get("again") is True:  # told, not done again
            continue
        at, step_s, blocked_s = (_number(line.get(key)) for key in ("at", "step_s", "blocked_s"))
        world_size = _whole(line.get("world_size"))
        found.setdefault(attempt, []).append(Step(step, at, step_s, blocked_s, world_size))
    return found


def saves_by_attempt(lines: Iterable[Mapping[str, Any]]) -> Saves:
    """Return the saves of each attempt; other lines are no saves."""
    found: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        attempt, blocked_s = _whole(line.get("attempt")), _number(line.get("blocked_s"))
        if line.get("kind") == "save" and attempt is not None and blocked_s is not None:
            found.setdefault(attempt, []).append((_number(line.get("at")) or 0.0, blocked_s))
    return found


def _number(value: object) -> float | None:
    """Return ``value`` if it is a time or a duration, in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < _LARGE else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and _number(value) is not None else None
