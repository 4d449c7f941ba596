"""A copy of the state in host memory, made while the next step computes.

Parameters and optimizer states change in one place alone, the optimizer's step. So they are copied
from the GPU by a stream of their own, and the step waits for that on the GPU; forward and backward
do not. What forward may change (buffers) is copied in the order of the training's own stream. A
state in host memory (CPU offload, or no GPU) is copied by the thread of the save, for which the
step waits too.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.checkpoint.planner import WriteItem

from orchestrator.errors import CheckpointError
from orchestrator.trainer.host_memory import HostMemory, Layout, Region, lay_out
from orchestrator.trainer.storage import Flat, Settled, is_object, local_tensor, object_bytes

Files = list[tuple[str, list[Region | bytes]]]


@dataclass(slots=True)
class Snapshot:
    """The copy of one step: what its files consist of, and what is still to be copied.

    `late` has (to, from) in host memory; `held` what the GPU still reads.
    """

    files: Files
    late: list[tuple[torch.Tensor, torch.Tensor]]
    held: list[torch.Tensor]
    on_gpu: torch.cuda.Event | None = None
    copied: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> None:
        """Return once the copy is whole. For the thread of the save."""
        try:
            for there, here in self.late:
                there.copy_(here)
        finally:
            self.late.clear()
            self.copied.set()  # the training must not wait for what failed
        if self.on_gpu is not None:
            self.on_gpu.synchronize()
        self.held.clear()

    def hold_back(self, timeout_s: float) -> None:
        """Keep the optimizer from changing what is not copied yet. For the training thread.

        Raises:
            CheckpointError: The copy did not come to its end in time.
        """
        if self.on_gpu is not None:
            torch.cuda.current_stream().wait_event(self.on_gpu)
        if not self.copied.wait(timeout_s):
            raise CheckpointError(f"the state was not copied within {timeout_s:g} s")


class Copier:
    """Copies states of one form into one memory, again and again."""

    def __init__(self, settled: Settled, flat: Flat) -> None:
        self._settled = settled
        self._tensors: list[WriteItem] = [
            item for row in settled.rows for item in row.items if not is_object(item)
        ]
        self.layout: Layout = lay_out(
            [local_tensor(item, flat[item.index.fqn]) for item in self._tensors]
        )
        self._there: list[torch.Tensor] = []
        self._stream: torch.cuda.Stream | None = None

    def use(self, memory: HostMemory) -> None:
        """Copy into ``memory`` from now on."""
        self._there = [memory.tensor(region) for region in self.layout.regions]

    def forget(self) -> None:
        """Let go of the memory."""
        self._there = []

    @torch.no_grad()
    def take(self, flat: Flat, *, at_once: Callable[[str, torch.Tensor], bool]) -> Snapshot:
        """Begin to copy the state ``flat``.

        Args:
            flat: Of the form that was planned.
            at_once: Whether a tensor may change before the optimizer's step.

        Raises:
            ValueError: The state is of another form.
        """
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        early: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item, there in zip(self._tensors, self._there, strict=True):
            here = local_tensor(item, flat[item.index.fqn])
            (early if at_once(item.index.fqn, here) else pairs).append((there, here))
        for there, here in early:
            there.copy_(here, non_blocking=True)
        gpu = [pair for pair in pairs if pair[1].is_cuda]
        snapshot = Snapshot(
            files=self._files(flat),
            late=[pair for pair in pairs if not pair[1].is_cuda],
            held=[here for _, here in [*early, *gpu]],
        )
        if not snapshot.late:
            snapshot.copied.set()
        if any(here.is_cuda for here in snapshot.held):
            snapshot.on_gpu = self._copy_aside(gpu)
        return snapshot

    def _copy_aside(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for there, here in pairs:
                there.copy_(here, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _files(self, flat: Flat) -> Files:
        regions = iter(self.layout.regions)
        return [
            (
                row.name,
                [
                    object_bytes(flat[item.index.fqn]) if is_object(item) else next(regions)
                    for item in row.items
                ],
            )
            for row in self._settled.rows
        ]


def changes_in_forward(
    model: torch.nn.Module, parts: Sequence[str]
) -> Callable[[str, torch.Tensor], bool]:
    """Return what tells whether a tensor of a state may change before the optimizer's step.

    Args:
        model: Its buffers may.
        parts: Beginnings of the names of model and optimizer state; all else may, too.
    """
    buffers = {buffer.data_ptr() for buffer in model.buffers()}
    names = tuple(parts)
    return lambda name, tensor: not name.startswith(names) or tensor.data_ptr() in buffers
