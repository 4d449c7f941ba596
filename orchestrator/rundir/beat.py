"""What a rank says of its progress, in a file on its node's own disk. Pure.

The rank's runtime writes $FSDPQ_LOCAL_DIR/beats/rank-R, the node's monitor reads it. Both run on
one machine, so times are those of its monotonic clock, which all its processes share.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STARTING = "starting"
RESUMING = "resuming"
TRAINING = "training"
SAVING = "saving"
ENDING = "ending"
# Larger than any step and any time in seconds: what is larger was not written by us.
_LARGE = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A rank's progress.

    Attributes:
        step: Completed optimizer steps.
        phase: "starting", "resuming", "training", "saving", "ending", or a script's own word.
        waiting: Whether it waits for other ranks in a call of the runtime.
        since: When the phase began, in seconds since 1970.
        moved: When it last made progress: a step, or another phase. Monotonic clock.
        limit_s: How long it may make none; None where hangs are not looked for.
        step_s: Median time of its last steps; None before there are some.
        wait_s: Median time that it waited for the others at the vote after these steps.
        collectives: Last collective that it enqueued, by process group, as PyTorch's flight
            recorder has it; looked up only once it is past its limit.
    """

    rank: int
    local_rank: int
    world_size: int
    pid: int
    step: int
    phase: str
    since: float
    moved: float
    limit_s: float | None
    waiting: bool = False
    step_s: float | None = None
    wait_s: float | None = None
    collectives: Mapping[str, int] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the beat as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_text(cls, text: str) -> "Beat | None":
        """Return the beat in ``text``, None where there is none."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return cls.from_json(data) if isinstance(data, dict) else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Beat | None":
        """Return the beat that ``data`` holds, None if it lacks what a beat cannot do without."""
        counts = {name: whole(data.get(name)) for name in ("rank", "world_size", "pid", "step")}
        moved = number(data.get("moved"))
        if moved is None or any(value is None or value < 0 for value in counts.values()):
            return None
        return cls(
            **{name: value or 0 for name, value in counts.items()},
            local_rank=whole(data.get("local_rank")) or 0,
            phase=word(data.get("phase")),
            waiting=data.get("waiting") is True,
            since=number(data.get("since")) or 0.0,
            moved=moved,
            limit_s=number(data.get("limit_s")),
            step_s=number(data.get("step_s")),
            wait_s=number(data.get("wait_s")),
            collectives=numbers_by_name(data.get("collectives")),
        )


def beats_folder(local_dir: Path) -> Path:
    """Return where the ranks of a node write their beats."""
    return local_dir / "beats"


def local_stack(local_dir: Path, rank: int) -> Path:
    """Return where a rank writes its stacks, before they are put into the attempt's folder."""
    return local_dir / "stacks" / f"rank-{rank}.txt"


def number(value: object) -> float | None:
    """Return ``value`` if it is a number that a step or a time may be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if not abs(value) < _LARGE else value


def whole(value: object) -> int | None:
    """Return ``value`` if it is a whole number that a step or a rank may be."""
    found = number(value)
    return found if isinstance(found, int) else None


def word(value: object) -> str:
    """Return ``value`` if it is a text, made fit for one line; "" otherwise."""
    if not isinstance(value, str):
        return ""
    return "".join(letter for letter in value if letter.isprintable())[:80]


def numbers_by_name(value: object) -> dict[str, int]:
    """Return the whole numbers in ``value``, if it is an object, by their names."""
    if not isinstance(value, dict):
        return {}
    found = {str(name): whole(item) for name, item in value.items()}
    return {name: item for name, item in found.items() if item is not None}
