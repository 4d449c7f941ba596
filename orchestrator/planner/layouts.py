"""Other ways to lay the same training out: what fits, how few nodes will do, what is fast. Pure."""

import math
from bisect import bisect_left
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
MOST_NODES = 1024
# Less of it is free than the prediction may be off.
TIGHT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the training would run.

    Attributes:
        gpu: None where it is not known: then nothing is said of speed.
        per_node: Workers, and so GPUs, on a node.
        threads: Of each worker's processor.
        has_gpus: Whether there are any, of whatever kind.
    """

    gpu: Gpu | None
    per_node: int
    fabric: FabricProfile
    threads: int = THREADS
    has_gpus: bool = True


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


def allowed_nodes(global_batch: int, per_node: int) -> tuple[int, ...]:
    """Return the numbers of nodes over whose workers the global batch can be shared out.

    >>> allowed_nodes(60, 4)
    (1, 3, 5, 15)
    """
    most = min(global_batch // per_node, MOST_NODES)
    return tuple(n for n in range(1, most + 1) if global_batch % (n * per_node) == 0)


def fewest_nodes(train: TrainSpec, shape: ModelShape, place: Place) -> int | None:
    """Return the smallest number of nodes on which ``train`` fits as it is; None without one."""
    for nodes in allowed_nodes(train.global_batch, place.per_node):
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


def fewest_nodes_at_all(
    train: TrainSpec, shape: ModelShape, place: Place, *, least: int
) -> Layout | None:
    """Return the best layout on the fewest nodes that the global batch allows and any fits on.

    Args:
        train: What is trained.
        shape: Of its model.
        place: Where.
        least: Fewer nodes would not do whatever the batch: those of `fewest_nodes_of_any_batch`.
    """
    for nodes in allowed_nodes(train.global_batch, place.per_node):
        if nodes < least:
            continue
        if found := best(train, shape, place, nodes=nodes, count=1):
            return found[0]
    return None


def fewest_nodes_of_any_batch(train: TrainSpec, shape: ModelShape, place: Place) -> Layout | None:
    """Return the leanest layout on the fewest nodes that would do if the global batch allowed it.

    One sequence a GPU, all shards apart, and all computed again: less is not to be had. What a GPU
    holds only shrinks with the number of nodes, so that is searched by halves.
    """

    def lean(nodes: int) -> Layout:
        changes = {
            "global_batch": nodes * place.per_node,
            "micro_batch": 1,
            "mesh": MeshSpec(),
            "activation_checkpointing": "full",
        }
        return layout(train.model_copy(update=changes), shape, place, nodes=nodes)

    def enough(nodes: int) -> bool:
        one = lean(nodes)
        return bool(one.fits) and not one.tight

    nodes = bisect_left(range(1, MOST_NODES + 1), True, key=enough) + 1
    return lean(nodes) if nodes <= MOST_NODES else None


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
