"""Who acts on an end of a job: files in the run directory that only one process can create."""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

CLAIM_STALE_S = 600.0


def claim(layout: RunLayout, key: str) -> bool:
    """Return whether this process is the one to act on ``key`` (one end of one job).

    A claim is a file that only one process can create. One that was released, whose owner is gone,
    or that is older than ten minutes, is passed to the next generation: `key.0`, `key.1`, ... A
    process that asks again for what it holds still holds it.
    """
    generation = 0
    while True:
        path = layout.claims / f"{key}.{generation}"
        try:
            store.write_private(path, json.dumps(_owner()))
        except FileExistsError:
            age_s, owner = _age_s(path), store.read_json(path) or {}
            ours = _is_here(owner, os.getpid())
            if ours and age_s < CLAIM_STALE_S / 2:
                return True
            # One of ours that others may soon take for stale is not enough: the next one decides.
            if not ours and age_s < CLAIM_STALE_S and not _is_gone(owner):
                return False
            generation += 1
        else:
            return True


def release(layout: RunLayout, key: str) -> None:
    """Give back what this process has claimed of ``key``, done or not.

    Whoever claims it next looks again first. The file stays, so that a generation never returns.
    """
    for path in layout.claims.glob(f"{key}.*"):
        if _is_here(store.read_json(path) or {}, os.getpid()):
            with suppress(OSError):  # then it gets stale
                store.replace(path, json.dumps({"released": True}))


def _owner() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "start": _start(pid), "at": time.time()}


def _start(pid: object) -> str | None:
    """Return when process ``pid`` of this host started, in ticks; None if there is none.

    Process ids are used again, pairs of id and start are not.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


def _is_here(owner: Mapping[str, Any], pid: int) -> bool:
    """Return whether ``owner`` is process ``pid`` of this host."""
    place = (owner.get("host"), owner.get("pid"), owner.get("start"))
    return place == (socket.gethostname(), pid, _start(pid))


def _is_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether ``owner`` is known to have ended. One that is being written is not."""
    if owner.get("released") is True:
        return True
    if owner.get("host") != socket.gethostname():
        return False
    return _start(owner.get("pid")) != owner.get("start")


def _age_s(path: Path) -> float:
    with suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0
