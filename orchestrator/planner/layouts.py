"""Other ways to lay the same training out: what fits, how few nodes will do, what is fast. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.planner.gpus import Gpu
from orchestrator.planner.memory import Memory, memory
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.speed import THREADS, Speed, network, speed
from orchestrator.planner.workload import CHECKPOINTING, workload
from orchestrator.profile import FabricProfile
from orchestrator.spec.train import MeshSpec, TrainSpec, fits

# No more nodes than this are looked at for one that fits.
MOST_NODES = 256
# Less of it is free than the prediction may be off.
TIGHT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the training would run.

    Attributes:
        gpu: None where it is not known: then nothing is said of speed.
        per_node: Workers, and so GPUs, on a node.
        threads: Of each worker's processor.
    """

    gpu: Gpu | None
    per_node: int
    fabric: FabricProfile
    threads: int = THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to lay the training out, and what comes of it."""

    nodes: int
    train: TrainSpec
    memory: Memory
    speed: Speed | None
    gpu: Gpu | None

    @property
    def fits(self) -> bool | None:
        """Whether the memory will do; None where the GPU is not known."""
        return None if self.gpu is None else self.memory.peak <= self.gpu.memory_bytes

    @property
    def tight(self) -> bool:
        """Whether less is left than the prediction may be off."""
        return self.gpu is not None and self.memory.peak > TIGHT * self.gpu.memory_bytes

    @property
    def options(self) -> dict[str, Any]:
        """The keys of `train` that make it: micro-batch, mesh, and what is computed again."""
        mesh = self.train.mesh
        one = mesh.replicate == 1
        return {
            "micro_batch": self.train.micro_batch,
            "mesh": "fsdp" if one else {"replicate": mesh.replicate, "shard": mesh.shard},
            "activation_checkpointing": self.train.activation_checkpointing,
        }


def layout(train: TrainSpec, shape: ModelShape, place: Place, *, nodes: int) -> Layout:
    """Return what comes of ``train`` on ``nodes`` nodes.

    Raises:
        SpecError: The mesh does not fit the ranks.
    """
    work = workload(train, shape, world_size=nodes * place.per_node)
    gpu = place.gpu
    if gpu is None:
        fast = None
    else:
        net = network(gpu, place.fabric, per_node=place.per_node)
        fast = speed(shape, work, gpu, net, per_node=place.per_node, threads=place.threads)
    return Layout(nodes=nodes, train=train, memory=memory(shape, work, gpu), speed=fast, gpu=gpu)


def fewest_nodes(train: TrainSpec, shape: ModelShape, place: Place) -> int | None:
    """Return the smallest number of nodes on which ``train`` fits as it is; None without one."""
    for nodes in range(1, MOST_NODES + 1):
        if not fits(train, nodes * place.per_node):
            continue
        if layout(train, shape, place, nodes=nodes).fits:
            return nodes
    return None


def best(
    train: TrainSpec, shape: ModelShape, place: Place, *, nodes: int, count: int = 3
) -> list[Layout]:
    """Return the fastest layouts on ``nodes`` nodes that fit, at most ``count``, best first.

    Of those that differ in the micro-batch alone only the best one stands there. A smaller one
    goes before a larger one that is faster by less than a hundredth: memory is worth more.
    """
    found = [layout(one, shape, place, nodes=nodes) for one in _ways(train, place, nodes)]
    good = sorted((one for one in found if one.fits and not one.tight), key=_order)
    kinds: dict[str, Layout] = {}
    for one in good:
        kinds.setdefault(str({**one.options, "micro_batch": 0}), one)
    return list(kinds.values())[:count]


def fewest_nodes_at_all(train: TrainSpec, shape: ModelShape, place: Place) -> Layout | None:
    """Return the best layout on the fewest nodes on which any fits, with up to 64 nodes."""
    for nodes in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        if found := best(train, shape, place, nodes=nodes, count=1):
            return found[0]
    return None


def _order(one: Layout) -> tuple[int, int, float]:
    fast = one.speed.tokens_per_s_per_gpu if one.speed else 1.0
    return (-round(math.log(fast) / 0.01), one.train.micro_batch, one.memory.peak)


def _ways(train: TrainSpec, place: Place, nodes: int) -> Iterator[TrainSpec]:
    """Yield the job's training with other micro-batches, meshes and recomputing."""
    world = nodes * place.per_node
    for mesh in _meshes(train, place, nodes):
        for micro_batch in _micro_batches(train.global_batch, world):
            for again in CHECKPOINTING:
                changes = {
                    "micro_batch": micro_batch,
                    "mesh": mesh,
                    "activation_checkpointing": again,
                }
                yield train.model_copy(update=changes)


def _meshes(train: TrainSpec, place: Place, nodes: int) -> Iterator[MeshSpec]:
    yield MeshSpec()
    if nodes > 1:
        yield MeshSpec(replicate=nodes, shard=place.per_node)


def _micro_batches(global_batch: int, world: int) -> Iterator[int]:
    """Yield the micro-batches that share out the global batch, up to 64."""
    if global_batch % world:
        return
    each = global_batch // world
    yield from (size for size in range(1, min(each, 64) + 1) if each % size == 0)
