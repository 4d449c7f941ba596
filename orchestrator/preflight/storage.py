"""Can this node write checkpoints, and has it room of its own?

The question is put by a child process (`orchestrator.preflight.writing`): a file server that is
gone holds whoever asks, for ever.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.preflight.children import Child, Output, start_module
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Collector, Findings

# A checkpoint must fit beside those that are kept, and the next one may be a little larger.
_MARGIN = 1.2
_SKEW_S = 60.0
_MIB, _GIB = 1 << 20, 1 << 30
# Less than this, and torchrun, NCCL's segments or the data loaders fail; and what looks tight.
_TOO_SMALL = 32 * _MIB
_SMALL = _GIB


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of the node's own, and the free bytes in it; None where it is not there."""

    path: str
    free: int | None


def ask(checkpoints: Path, *, node: str) -> Child:
    """Start the write test in the directory of the checkpoints."""
    return start_module("orchestrator.preflight.writing", str(checkpoints), node)


def judge(output: Output, *, path: Path) -> Findings:
    """Return what the write test in ``path`` found."""
    found = Collector()
    said = _read(output.text)
    if output.code is None:
        found.problem("storage", f"{path}: a small file was not written in time", kind="storage")
    elif "error" in said:
        found.problem("storage", f"{path}: {said['error']}", kind="storage")
    elif not said:
        found.note(f"the write test itself broke: {output.text[-200:] or output.code}")
    else:
        _judge_room(said, path, found)
    return found.findings()


def _read(text: str) -> Mapping[str, Any]:
    try:
        said = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return said if isinstance(said, dict) else {}


def _judge_room(said: Mapping[str, Any], path: Path, found: Collector) -> None:
    free, newest, skew = said.get("free"), said.get("newest"), said.get("skew_s")
    if isinstance(free, int) and isinstance(newest, int) and free < newest * _MARGIN:
        found.problem(
            "storage",
            f"{path}: {free / _GIB:.1f} GiB are free, and a checkpoint takes"
            f" {newest / _GIB:.1f} GiB",
            kind="storage",
        )
    if isinstance(skew, float) and abs(skew) > _SKEW_S:
        found.note(f"the clock of this node and that of the file system differ by {skew:.0f} s")


def judge_rooms(*rooms: Room) -> Findings:
    """Return the folders of the node's own that are full, or nearly so."""
    found = Collector()
    for room in rooms:
        if room.free is None:
            continue
        if room.free < _TOO_SMALL:
            found.problem("storage", f"{room.path}: {room.free / _MIB:.0f} MiB are free")
        elif room.free < _SMALL:
            found.note(f"{room.path}: only {room.free / _MIB:.0f} MiB are free")
    return found.findings()


def room(path: str) -> Room:
    """Return the free bytes in ``path``."""
    try:
        status = os.statvfs(path)
    except OSError:
        return Room(path, None)
    return Room(path, status.f_bavail * status.f_frsize)


def check_rooms(expected: Expected, *, temporary: str) -> Findings:
    """Return what there is to say about the node's own folders."""
    if not expected.asks("storage"):
        return Findings()
    return judge_rooms(room(temporary), room("/dev/shm"))
