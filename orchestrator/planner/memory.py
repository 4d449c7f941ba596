"""What a GPU holds in the course of a step, and when it holds most. Pure.

A step of the trainer is played through: what `fully_shard` gathers and frees (torch 2.11 to 2.13,
_fsdp_param_group.py and _fsdp_collectives.py), what autograd saves, what the loss needs, and what
the optimizer keeps. The moment with the most bytes is the answer.

CUDA's allocator keeps a pool for each stream and gives nothing back by itself. So what PyTorch
reserves is the sum of what each stream held at most: the default one; the one that gathers; and the
one that scatters gradients, in which they then stay.
"""

from dataclasses import dataclass

from orchestrator.planner.gpus import Gpu
from orchestrator.planner.moments import Moment, moments
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.state import State, state_of
from orchestrator.planner.workload import Workload

MIB = 2**20

# cuBLAS's and cuBLASLt's workspaces on Hopper, 32 MiB each, which PyTorch allocates.
_WORKSPACE = 64 * MIB
# What CUDA, cuBLAS's and PyTorch's kernels take beside PyTorch's allocator, and NCCL's buffers for
# its channels. Estimates: `python -m tests.gpu.planner` measures them.
_CONTEXT = 560 * MIB
_NCCL = 600 * MIB
# What stays unused between allocations with expandable segments, as a part of the default pool.
_FRAGMENTATION = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a GPU needs, in bytes.

    Attributes:
        moment: When it needs most.
        kinds: What it then holds, by kind.
        pools: Reserved by PyTorch beside `kinds`: other streams' pools, and fragmentation.
        context: Beside PyTorch's allocator: CUDA itself and NCCL.
        host: Bytes of host memory for parameters and optimizer, where they are offloaded.
    """

    moment: str
    kinds: dict[str, float]
    pools: float
    context: float
    host: float

    @property
    def allocated(self) -> float:
        """What PyTorch's tensors take: `torch.cuda.max_memory_allocated`."""
        return sum(self.kinds.values())

    @property
    def reserved(self) -> float:
        """What its allocator takes: `torch.cuda.max_memory_reserved`."""
        return self.allocated + self.pools

    @property
    def peak(self) -> float:
        """What `nvidia-smi` shows."""
        return self.reserved + self.context

    def to_json(self) -> dict[str, int]:
        """Return the bytes by kind; they add up to the peak."""
        whole = {**self.kinds, "allocator": self.pools, "context": self.context}
        return {kind: round(size) for kind, size in whole.items()}


def memory(shape: ModelShape, work: Workload, gpu: Gpu | None = None) -> Memory:
    """Return what each GPU needs for ``work``; ``gpu`` None is taken as one of Hopper's."""
    all_moments = list(moments(shape, work, processors=gpu.processors if gpu else _HOPPER))
    highest = max(all_moments, key=lambda one: one.total)
    kinds = {**highest.kinds, "workspace": float(_WORKSPACE)}
    allocated = sum(kinds.values())
    communicators = 0 if work.world_size == 1 else 2 if work.replicate > 1 and work.shard > 1 else 1
    return Memory(
        moment=highest.name,
        kinds=kinds,
        pools=max(_reserved(all_moments) - allocated, 0.0),
        context=float(_CONTEXT + _NCCL * communicators),
        host=_host(state_of(shape, work)) if work.offload else 0.0,
    )


_HOPPER = 132


def _reserved(all_moments: list[Moment]) -> float:
    default = max(one.total - one.gathered - one.scattered for one in all_moments) + _WORKSPACE
    gathered = max(one.gathered for one in all_moments)
    return default * (1 + _FRAGMENTATION) + gathered + max(one.scattered for one in all_moments)


def _host(state: State) -> float:
    return state.parameters + state.gradients + state.optimizer
