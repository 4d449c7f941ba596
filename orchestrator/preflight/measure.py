"""Time collectives over a group of ranks, with the clock of the GPU where there is one."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.bandwidth.formulas import algorithm_gbs, bus_gbs
from orchestrator.bandwidth.record import Measurement

Call = Callable[[], object]

_BYTES = 4  # of an element: fp32, as nccl-tests does
# torch 2.13 calls these by new names and warns of the old ones.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
# NCCL sets up its connections in the first call, and picks up speed in the next.
_WARM_UP = 3
# Calls go in batches, for an event costs as much as a small call; the median of the batches counts.
_BATCHES = 5
_BATCH_S, _MOST_CALLS = 0.02, 20
# All batches of one figure together, unless a single call takes longer.
_FIGURE_S = 2.0
_GPU_SHARE, _CPU_SHARE = 4, 16


class Buffers:
    """The arrays of all collectives: ``whole`` has room for ``most`` bytes, ``part`` for one."""

    def __init__(self, device: torch.device, most: int) -> None:
        self.device = device
        self.whole = torch.zeros(most // _BYTES, dtype=torch.float32, device=device)
        self.part = torch.zeros(most // _BYTES, dtype=torch.float32, device=device)


class Meter:
    """Times collectives over ``group``, or over all ranks. All of its ranks make the same calls."""

    def __init__(self, buffers: Buffers, group: dist.ProcessGroup | None = None) -> None:
        self._buffers = buffers
        self._group = group
        self.ranks = dist.get_world_size(group)

    def most(self, value: float) -> float:
        """Return the largest ``value`` of all ranks; they wait for one another."""
        box = torch.tensor([value], dtype=torch.float64, device=self._buffers.device)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self._group)
        return float(box.item())

    def call(self, collective: str, size: int) -> Call:
        """Return what makes one call over an array of ``size`` bytes, less what does not divide."""
        share = size // _BYTES // self.ranks
        whole, part = self._buffers.whole[: share * self.ranks], self._buffers.part[:share]
        match collective:
            case "all_reduce":
                return lambda: dist.all_reduce(whole, group=self._group)
            case "all_gather":
                return lambda: _gather(whole, part, group=self._group)
            case _:
                return lambda: _scatter(part, whole, group=self._group)

    def warm_up(self, call: Call) -> float:
        """Return the seconds of one call, roughly, once they are no longer those of a first one."""
        for _ in range(_WARM_UP):
            roughly = self._batch(call, 1)
        return self.most(roughly)

    def seconds(self, call: Call, *, roughly: float) -> float:
        """Return the median time of a call on the rank where that is longest."""
        calls = max(1, min(_MOST_CALLS, int(_BATCH_S / roughly))) if roughly > 0 else _MOST_CALLS
        batches = max(1, min(_BATCHES, int(_FIGURE_S / (calls * roughly)) if roughly > 0 else 5))
        return self.most(median(self._batch(call, calls) / calls for _ in range(batches)))

    def measure(self, collective: str, size: int) -> Measurement:
        """Return the figures of one collective."""
        call = self.call(collective, size)
        return self.measured(collective, size, self.seconds(call, roughly=self.warm_up(call)))

    def measured(self, collective: str, size: int, seconds: float) -> Measurement:
        """Return the figures of a collective that took so long."""
        used = size // _BYTES // self.ranks * self.ranks * _BYTES
        return Measurement(
            collective=collective,
            size=size,
            seconds=round(seconds, 9),
            algorithm_gbs=round(algorithm_gbs(used, seconds), 6),
            bus_gbs=round(bus_gbs(collective, used, seconds, ranks=self.ranks), 6),
        )

    def _batch(self, call: Call, times: int) -> float:
        """Return the seconds of so many calls, one after another."""
        if self._buffers.device.type != "cuda":
            began = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - began
        # The stream of these events waits for NCCL's own after each call.
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def free_bytes(device: torch.device, *, local_ranks: int) -> int:
    """Return what a buffer may have of the memory that is free here, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // _GPU_SHARE
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 64 << 20
    return (free << 10) // (_CPU_SHARE * local_ranks)


def least(value: int, device: torch.device) -> int:
    """Return the smallest ``value`` of all ranks."""
    box = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MIN)
    return int(box.item())


def local_device(local_rank: int) -> torch.device:
    """Return this rank's GPU, or the CPU where there is none, and use it from here on."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join(device: torch.device, *, wait_s: float, timeout_s: float) -> Any:
    """Join the process group that the environment describes, and return a store of our own.

    Args:
        device: What the ranks compute on: nccl for GPUs, gloo for CPUs.
        wait_s: How long to wait for the other ranks.
        timeout_s: How long a collective may take.
    """
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(rendezvous("env://", timeout=timedelta(seconds=wait_s)))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore("group", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.PrefixStore("sweep", store)  # type: ignore[attr-defined]


def nccl_version(device: torch.device) -> str:
    """Return NCCL's version, "" where it is not used."""
    if device.type != "cuda":
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
