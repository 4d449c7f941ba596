"""The moments of a step at which a GPU may hold most, and what it holds then. Pure.

A step of the trainer is played through: what `fully_shard` gathers and frees (torch 2.11 to 2.13,
_fsdp_param_group.py and _fsdp_collectives.py), what autograd saves and what the loss needs. A group
of parameters is gathered into one buffer and copied out of it; the next one's buffer is there
before. Gradients are copied into a buffer in fp32, which stays until the next group's are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.backward import backward
from orchestrator.planner.forward import forward
from orchestrator.planner.now import Now
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.sizes import Sizes, sizes_of
from orchestrator.planner.workload import Workload

# Kinds of bytes, in the order in which they are shown.
KINDS = (
    "parameters", "optimizer", "gradients", "unsharded", "activations", "logits", "communication",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held at one moment.

    Attributes:
        name: What happens.
        kinds: Bytes by kind.
        gathered: Those of them that are in the pool of the stream that gathers.
        scattered: Those that are in the pool of the stream that scatters gradients.
        unused: Bytes of the default stream's pool, beside `kinds`, that nothing fits into.
    """

    name: str
    kinds: dict[str, float]
    gathered: float = 0.0
    scattered: float = 0.0
    unused: float = 0.0

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.kinds.values())


def moments(shape: ModelShape, work: Workload, *, processors: int) -> Iterator[Moment]:
    """Yield the moments of a step at which a GPU may hold most.

    Args:
        shape: The model.
        work: What a rank does.
        processors: Streaming multiprocessors of the GPU.
    """
    sizes = sizes_of(shape, work, processors)
    for now in (*forward(sizes), *backward(sizes)):
        yield _moment(now, sizes)


def _moment(now: Now, sizes: Sizes) -> Moment:
    work, state = sizes.work, sizes.state
    sent, sums, sending = 4.0 * now.done / work.shard, 0.0, now.sending
    if work.micro_batches > 1:  # the last one counts, with the gradients of those before it
        if work.unsharded_sums:
            sums = 4.0 * (state.trained - now.done)
        else:
            sent = state.gradients
            # Only the last backward of a step lets go of the last buffer it scattered from.
            sending = sending or 4.0 * state.last
    there = 0.0 if work.offload else 1.0
    scattered = there * sent + now.received
    return Moment(
        name=now.name,
        kinds={
            "parameters": there * state.parameters,
            "optimizer": there * state.optimizer,
            "gradients": scattered + sums + now.own,
            "unsharded": now.whole,
            "activations": now.activations,
            "logits": now.logits,
            "communication": now.buffer + sending,
        },
        gathered=now.buffer,
        scattered=scattered,
        unused=now.unused,
    )
