"""One rank of the small all-reduce over the GPUs of this node; the one module here with torch.

    python -m orchestrator.preflight.collective RANK WORLD_SIZE FOLDER

Writes its report to FOLDER/rank-R.json at each stage, so that of ranks that hang the one that hung
first is known. The ranks meet over a file: there is no port to be taken and no name to resolve.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

_ELEMENTS = 16 << 20  # 64 MiB of fp32: what NCCL sends in its full-speed protocol
_SIDE = 8192  # of the matrices each GPU multiplies alone; some 30 ms in all on an H100
_TIMES = 20


class Reporter:
    """Replaces this rank's report."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, Any] = {}

    def say(self, **facts: Any) -> None:
        """Add to the report."""
        self._said.update(facts)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._said), encoding="utf-8")
        draft.replace(self._path)


def main(rank: int, world_size: int, folder: Path, *, timeout_s: int) -> None:
    """Take part in the all-reduce as ``rank``."""
    reporter = Reporter(folder / f"rank-{rank}.json")
    signal.alarm(timeout_s + 10)  # whoever started this may be gone
    try:
        _take_part(rank, world_size, folder, timeout_s, reporter)
    except Exception as problem:  # of whatever kind, it is this rank's answer
        reporter.say(error=f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        os._exit(1)  # destroying a broken process group may hang
    os._exit(0)


def _take_part(
    rank: int, world_size: int, folder: Path, timeout_s: int, reporter: Reporter
) -> None:
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.is_available()
    reporter.say(stage="started", device=f"cuda:{rank}" if gpus else "cpu")
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    values = torch.full((_ELEMENTS,), float(rank + 1), device=device)
    work_s = _work(torch, device) if gpus else None
    reporter.say(stage="device", work_s=work_s)
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    reporter.say(stage="group")
    dist.all_reduce(values)
    # Waits for the GPU. Whole numbers this small are exact, in whatever order they are added.
    low, high = values.min().item(), values.max().item()
    total = world_size * (world_size + 1) / 2
    reporter.say(stage="done", sum_ok=low == total and high == total)


def _work(torch: Any, device: Any) -> float:
    """Return the seconds for some products of matrices, once the GPU has warmed up."""
    a = torch.ones((_SIDE, _SIDE), device=device, dtype=torch.bfloat16)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(_TIMES):
            a @ a  # its result does not matter
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), timeout_s=int(sys.argv[4]))
