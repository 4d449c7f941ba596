"""What a worker leaves in its attempt's folder for the launcher to read.

status.json is one line, so that the batch shell can match `"outcome": "stopped"` in it.
"""

import json
import os
import socket
import time
import traceback
from pathlib import Path
from typing import Any, Literal

from orchestrator.checkpoint.durable import write_json, write_json_once
from orchestrator.runtime.environment import Environment

Outcome = Literal["stopped", "finished", "failed", "no_checkpoint", "superseded"]


def status(
    env: Environment,
    *,
    outcome: Outcome,
    reason: str,
    first_step: int,
    step: int,
    saved_step: int | None,
) -> dict[str, Any]:
    """Return how this attempt ended, as a status file says it. Steps count completed ones."""
    moved = saved_step is not None and saved_step > first_step
    return {
        "outcome": outcome,
        "first_step": first_step,
        "step": step,
        "saved_step": saved_step,
        "progress": outcome == "finished" or moved,
        "reason": " ".join(reason.split()),
        "rank": env.rank,
        "at": time.time(),
    }


def write_status(env: Environment, content: dict[str, Any], *, replace: bool = True) -> None:
    """Write the attempt's status file; without ``replace`` the first writer wins."""
    if replace:
        write_json(env.files.status, content)
    else:
        write_json_once(env.files.status, content)


def write_error(env: Environment, error: BaseException, *, step: int) -> None:
    """Write this rank's error file, and torchrun's if it asked for one."""
    now = time.time()
    text = _one_line(error)
    trace = "".join(traceback.format_exception(error))
    env.files.errors.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(
        env.files.errors / f"rank-{env.rank}.json",
        {
            "rank": env.rank,
            "node": socket.gethostname(),
            "local_rank": env.local_rank,
            "step": step,
            "at": now,
            "exception": text,
            "traceback": trace,
            "signal": None,
        },
    )
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        _write_for_torchrun(Path(path), text, trace, now)


def _write_for_torchrun(path: Path, text: str, trace: str, at: float) -> None:
    """Write what torchrun reads back to name the root cause.

    Source: torch/distributed/elastic/multiprocessing/errors, the keys read there (2.11 to 2.14).
    """
    extra = {"py_callstack": trace, "timestamp": str(int(at))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))


def _one_line(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
