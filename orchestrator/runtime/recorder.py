"""Asks PyTorch's flight recorder what a rank that stands still enqueued last.

Called from the thread of the beats, only once the rank is past its limit, and only where the script
has imported torch. The recorder's interface is private and differs between versions and builds, so
whatever goes wrong is passed over.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def dump(rank: int) -> dict[str, int]:
    """Return the last collective that this rank enqueued, by number of the process group.

    Side effect: writes the whole record beside TORCH_FR_DUMP_TEMP_FILE, where `torchfrtrace` reads
    it, as PyTorch itself does at its own time-out.
    """
    if "torch" not in sys.modules:
        return {}
    try:
        return _dump(rank)
    # Diagnosis of a process that is broken already: nothing it meets may matter.
    except Exception:
        return {}


def _dump(rank: int) -> dict[str, int]:
    from torch._C import _distributed_c10d as c10d

    found: dict[str, int] = {}
    # "fr": gloo and other backends; "nccl": builds with CUDA, whose collectives count for more.
    for kind in ("fr", "nccl"):
        name = f"_dump_{kind}_trace"
        if not hasattr(c10d, f"{name}_json"):
            continue
        last = enqueued(json.loads(getattr(c10d, f"{name}_json")(False, False)))
        found |= last
        if last and (prefix := os.environ.get("TORCH_FR_DUMP_TEMP_FILE")):
            data: bytes = getattr(c10d, name)(True, True, False)
            _write(Path(f"{prefix}{rank}"), data)
    return found


def enqueued(record: dict[str, Any]) -> dict[str, int]:
    """Return the last enqueued collective of each group in the recorder's JSON."""
    status = record.get("pg_status", {})
    return {
        str(group): int(state["last_enqueued_collective"])
        for group, state in status.items()
        if int(state.get("last_enqueued_collective", -1)) >= 0
    }


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
