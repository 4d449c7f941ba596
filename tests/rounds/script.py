"""What the batch script and the workers leave in the run directory, without running them.

The files are those of templates/ and of orchestrator.runtime; the standard library has to do.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

_OPTION = re.compile(r"^#SBATCH --([a-z-]+)=?\"?(.*?)\"?$", re.MULTILINE)


def read(path: str) -> dict[str, Any]:
    """Return what sbatch takes from a script: its name, its run and whether it waits its turn."""
    with open(path) as file:  # noqa: PTH123 (a quick start matters, here and below)
        text = file.read()
    options = dict(_OPTION.findall(text))
    found = re.search(r"^run_dir=(\S+)$", text, re.MULTILINE)
    return {
        "name": options["job-name"],
        "partition": options.get("partition", "spot"),
        "singleton": options.get("dependency") == "singleton",
        "run_dir": found[1] if found else "",
        "attempt": 0,
    }


def start(job: dict[str, Any], at: float) -> int | None:
    """Number the attempt as templates/_2 does; None where the run is over already."""
    run = job["run_dir"]
    if os.path.exists(f"{run}/finished.json") or os.path.exists(f"{run}/cancelled.json"):  # noqa: PTH110
        return None
    number = 1 + max((int(name) for name in os.listdir(f"{run}/attempts")), default=0)  # noqa: PTH208
    os.makedirs(f"{run}/attempts/{number}/errors", mode=0o700)  # noqa: PTH103
    fields = {"job_id": job["id"], "restart": job["restart"], "nodes": job["nodes"]}
    _write(f"{run}/attempts/{number}/start.json", {**fields, "pid": 1, "started_at": int(at)})
    return number


def end(job: dict[str, Any], how: str, at: float, state: dict[str, Any]) -> None:
    """Leave what an attempt leaves that ends as ``how``."""
    folder = f"{job['run_dir']}/attempts/{job['attempt']}"
    if how == "FAILED":
        checkpoint(job["run_dir"], state)
    if how in ("FAILED", "no progress"):
        error = {"rank": 1, "node": "n2", "step": state["step"], "exception": "ValueError: bad"}
        _write(f"{folder}/errors/rank-1.json", {**error, "at": at})
        _exit(folder, "none", "the workers failed", at, code=1)
    elif how in ("PREEMPTED", "TIMEOUT"):  # progress is known from a checkpoint alone
        checkpoint(job["run_dir"], state)


def stop(job: dict[str, Any], at: float, state: dict[str, Any]) -> bool:
    """Save and stop for a notice; return whether the batch shell puts the job back."""
    folder = f"{job['run_dir']}/attempts/{job['attempt']}"
    _write(f"{folder}/notice.batch", "USR2")
    checkpoint(job["run_dir"], state)
    _write(f"{folder}/status.json", {"outcome": "stopped", "step": state["step"], "at": at})
    if os.path.exists(f"{job['run_dir']}/cancelled.json"):  # noqa: PTH110
        _exit(folder, "none", "the run is cancelled", at)
        return False
    _exit(folder, "requeue", "stopped for a notice", at)
    return True


def checkpoint(run: str, state: dict[str, Any]) -> None:
    """Publish a newer checkpoint."""
    state["step"] += 10
    draft, step = f"{run}/checkpoints/step-{state['step']}.tmp-1", state["step"]
    os.mkdir(draft)  # noqa: PTH102
    _write(f"{draft}/data", "x")
    size = os.stat(f"{draft}/data").st_size  # noqa: PTH116
    files = {"data": {"size": size, "sha256": "0"}}
    manifest = {"step": step, "world_size": 4, "files": files, "at": 0.0}
    _write(f"{draft}/manifest.json", manifest)
    os.replace(draft, f"{run}/checkpoints/step-{step}")  # noqa: PTH105


def _exit(folder: str, action: str, why: str, at: float, *, code: int = 0) -> None:
    content = {"code": code, "action": action, "why": why, "ended_at": int(at)}
    _write(f"{folder}/exit.json", content)


def _write(path: str, content: object) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        json.dump(content, file)
