"""saves.jsonl: what each save cost, and the interval that `auto` chose. Written by rank 0.

    {"kind": "save", "attempt": 1, "step": 500, "bytes": 96e9, "seconds": 41.0, "blocked_s": 41.0,
     "blocking": true, "reason": "interval", "at": 1732900000.0}
    {"kind": "interval", "attempt": 1, "step": 500, "steps": 320, "seconds": 1290.1, ...}

`seconds` is from the beginning of a save until it is published, `blocked_s` how long the training
stood still for it. `reason` is "interval", "notice" or "end".
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.checkpoint import read_manifest
from orchestrator.errors import CheckpointError
from orchestrator.runtime.environment import Environment


def record_save(env: Environment, *, step: int, seconds: float, reason: str) -> None:
    """Write down a save that blocked the training; nothing if that cannot be written."""
    path = env.checkpoints / f"step-{step}"
    _append(
        env,
        kind="save",
        step=step,
        bytes=_size(path),
        seconds=seconds,
        blocked_s=seconds,
        blocking=True,
        reason=reason,
    )


def record_interval(env: Environment, *, step: int, **values: Any) -> None:
    """Write down when the next saves will be; nothing if that cannot be written."""
    _append(env, kind="interval", step=step, **values)


def _append(env: Environment, *, kind: str, step: int, **values: Any) -> None:
    line = {"kind": kind, "attempt": env.attempt, "step": step, **values, "at": time.time()}
    # What is only told must not end a run: the disk may be full, and the save itself was fine.
    with suppress(OSError):
        file = os.open(env.run.saves, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, (b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)


def _size(checkpoint: Path) -> int | None:
    """Return the bytes of a checkpoint, by its manifest."""
    try:
        return sum(entry.size for entry in read_manifest(checkpoint).files.values())
    except (OSError, CheckpointError):
        return None
