"""saves.jsonl: what each save cost, and the interval that `auto` chose. Written by rank 0.

    {"kind": "save", "attempt": 1, "step": 500, "bytes": 96e9, "seconds": 41.0, "blocked_s": 41.0,
     "blocking": true, "reason": "interval", "at": 1732900000.0}
    {"kind": "lost", "attempt": 1, "step": 900, "seconds": 3.0, "blocked_s": 0.1, "why": "...", ...}
    {"kind": "interval", "attempt": 1, "step": 500, "steps": 320, "seconds": 1290.1, ...}

`seconds` is from the beginning of a save until it is published, `blocked_s` how long the training
stood still for it; where `blocking` is false the rest was written in the background. `reason` is
"interval", "notice" or "end". "lost" is a save in the background that was never published.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.checkpoint import read_manifest
from orchestrator.errors import CheckpointError
from orchestrator.json_lines import append_line
from orchestrator.runtime.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """What a save has cost.

    Attributes:
        step: Completed steps.
        bytes: Of all its files, by the manifest; None where that cannot be read.
        seconds: From its beginning until it was published.
        blocked_s: For how long the training stood still.
        blocking: Whether it stood still all the while.
    """

    step: int
    bytes: int | None
    seconds: float
    blocked_s: float
    blocking: bool


def record_save(
    env: Environment, *, step: int, seconds: float, reason: str, blocked_s: float | None = None
) -> Save:
    """Write down a save that was published; nothing if that cannot be written. Return its cost.

    Without ``blocked_s`` it blocked the training all the while.
    """
    save = Save(
        step=step,
        bytes=_size(env.checkpoints / f"step-{step}"),
        seconds=seconds,
        blocked_s=seconds if blocked_s is None else blocked_s,
        blocking=blocked_s is None,
    )
    _append(env, kind="save", **asdict(save), reason=reason)
    return save


def record_loss(
    env: Environment, *, step: int, seconds: float, blocked_s: float, reason: str, why: str
) -> None:
    """Write down a save in the background that came to nothing, and why."""
    _append(
        env, kind="lost", step=step, seconds=seconds, blocked_s=blocked_s, reason=reason, why=why
    )


def record_interval(env: Environment, *, step: int, **values: Any) -> None:
    """Write down when the next saves will be; nothing if that cannot be written."""
    _append(env, kind="interval", step=step, **values)


def _append(env: Environment, *, kind: str, step: int, **values: Any) -> None:
    line = {"kind": kind, "attempt": env.attempt, "step": step, **values, "at": time.time()}
    # What is only told must not end a run: the disk may be full, and the save itself was fine.
    with suppress(OSError):
        append_line(env.run.saves, json.dumps(line).encode() + b"\n")


def _size(checkpoint: Path) -> int | None:
    """Return the bytes of a checkpoint, by its manifest."""
    try:
        return sum(entry.size for entry in read_manifest(checkpoint).files.values())
    except (OSError, CheckpointError):
        return None
