"""All that can be said of a job before it runs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.planner.families import shape_of
from orchestrator.planner.layouts import (
    MOST_NODES,
    Layout,
    Place,
    allowed_nodes,
    best,
    fewest_nodes,
    fewest_nodes_at_all,
    fewest_nodes_of_any_batch,
    layout,
)
from orchestrator.planner.saves import Saves, saves
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.workload import workload
from orchestrator.spec.train import TrainSpec

_OPTIONS = (
    "precision", "compile", "fp8", "loss_chunks", "cpu_offload", "prefetch",
    "reshard_after_forward", "accumulate", "deterministic",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is likely to come of a job.

    Attributes:
        asked: The job as it is written.
        as_written: The fewest nodes on which it fits as it is written; None where unknown or none.
        smallest: The best layout on the fewest nodes on which any would fit, of those that the
            global batch can be shared out over.
        of_any_batch: The leanest layout, on the fewest nodes that would do with any global batch.
        layouts: The fastest ones that fit on the nodes that it asks for.
        saves: Its checkpoints.
    """

    train: TrainSpec
    shape: ModelShape
    place: Place
    asked: Layout
    as_written: int | None
    smallest: Layout | None
    of_any_batch: Layout | None
    layouts: tuple[Layout, ...]
    saves: Saves

    @property
    def nodes_min(self) -> int | None:
        """The fewest nodes that will do, as it is written or with another layout."""
        ways = [self.as_written, self.smallest.nodes if self.smallest else None]
        return min((nodes for nodes in ways if nodes is not None), default=None)

    @property
    def options(self) -> dict[str, Any]:
        """The keys of `train` that memory or time depend on, but for those at their defaults."""
        fields = TrainSpec.model_fields
        given = {key: getattr(self.train, key) for key in _OPTIONS}
        more = {key: value for key, value in given.items() if value != fields[key].default}
        return {**self.asked.options, **more}

    @property
    def total_s(self) -> float | None:
        """Seconds of all steps, without saves and interruptions."""
        return self.asked.speed.step_s * self.train.steps if self.asked.speed else None

    @property
    def answer(self) -> str:
        """One sentence: whether it takes more than one node."""
        return _answer(self)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types; the first seven keys are those that stay."""
        asked, speed, gpu = self.asked, self.asked.speed, self.place.gpu
        return {
            "fits": asked.fits,
            "nodes_min": self.nodes_min,
            "per_gpu_bytes": asked.memory.to_json(),
            "peak_bytes": round(asked.memory.peak),
            "checkpoint_bytes": round(self.saves.checkpoint_bytes),
            "step_s": speed and speed.step_s,
            "tokens_per_s_per_gpu": speed and speed.tokens_per_s_per_gpu,
            "tight": asked.tight,
            "nodes_min_as_written": self.as_written,
            "nodes": asked.nodes,
            "gpus_per_node": self.place.per_node,
            "gpu": gpu and gpu.name,
            "gpu_bytes": gpu and round(gpu.memory_bytes),
            "allocated_bytes": round(asked.memory.allocated),
            "reserved_bytes": round(asked.memory.reserved),
            "host_bytes": round(asked.memory.host),
            "peak_moment": asked.memory.moment,
            "parameters": self.shape.parameters,
            "mfu": speed and speed.share,
            "speed_within": speed and speed.within,
            "speed_source": speed and speed.source,
            "total_s": self.total_s,
            "checkpoint_s": self.saves.save_s,
            "checkpoint_blocked_s": self.saves.blocked_s,
            "checkpoint_host_bytes": round(self.saves.host_bytes),
            "checkpoint_every_s": self.saves.every_s,
            "checkpoint_every_steps": self.saves.every_steps,
            "answer": self.answer,
            "smallest": self.smallest and _layout_json(self.smallest),
            "layouts": [_layout_json(one) for one in self.layouts],
        }


def _layout_json(one: Layout) -> dict[str, Any]:
    return {
        "nodes": one.nodes,
        **one.options,
        "peak_bytes": round(one.memory.peak),
        "step_s": one.speed and one.speed.step_s,
        "tokens_per_s_per_gpu": one.speed and one.speed.tokens_per_s_per_gpu,
    }


def forecast(train: TrainSpec, config: Mapping[str, Any], place: Place, *, nodes: int) -> Forecast:
    """Return what is likely to come of ``train`` on ``nodes`` nodes.

    Args:
        train: What is trained, its mesh settled.
        config: The Hugging Face configuration of its model.
        place: What the nodes are.
        nodes: How many the job asks for.

    Raises:
        SpecError: The shape of the model is not known, the mesh does not fit the ranks, or the GPU
            has no FP8.
    """
    shape = shape_of(config)
    if train.fp8 != "off" and place.gpu is not None and place.gpu.fp8_flops is None:
        raise SpecError(
            f"train.fp8: {train.fp8} needs a Hopper GPU (H100, H200) or a newer one, not"
            f" {place.gpu.name}; use fp8: off"
        )
    asked = layout(train, shape, place, nodes=nodes)
    known = place.gpu is not None
    as_written = fewest_nodes(train, shape, place) if known else None
    lean = fewest_nodes_of_any_batch(train, shape, place) if known else None
    smallest = fewest_nodes_at_all(train, shape, place, least=lean.nodes) if lean else None
    work = workload(train, shape, world_size=nodes * place.per_node)
    return Forecast(
        train=train,
        shape=shape,
        place=place,
        asked=asked,
        as_written=as_written,
        smallest=smallest,
        of_any_batch=lean,
        layouts=tuple(best(train, shape, place, nodes=nodes)) if known else (),
        saves=saves(
            shape,
            work,
            train.checkpoint,
            step_s=asked.speed.step_s if asked.speed else None,
            gpus=place.has_gpus,
        ),
    )


def spelled(options: Mapping[str, object]) -> str:
    """Return keys and values as a job file has them.

    >>> spelled({"mesh": {"replicate": 4, "shard": 8}, "compile": True})
    'mesh: {replicate: 4, shard: 8}, compile: true'
    """
    return ", ".join(f"{key}: {_value(value)}" for key, value in options.items())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{spelled(value)}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _answer(seen: Forecast) -> str:
    gpu, smallest, as_it_is = seen.place.gpu, seen.smallest, seen.as_written
    if gpu is None:
        return "The kind of GPU is not known: give --gpu to learn how many nodes it takes."
    kind = f"{seen.place.per_node} x {gpu.name}"
    if as_it_is == 1:
        return f"No: it fits on one node of {kind} as it is. More nodes only make it faster."
    if as_it_is and (smallest is None or as_it_is <= smallest.nodes):
        return f"Yes: as it is it takes {as_it_is} nodes of {kind}."
    if smallest is None:
        return _none_fits(seen, kind)
    ways = spelled(smallest.options)
    if smallest.nodes == 1:
        return f"Not for its memory: it fits on one node of {kind} with {ways}."
    more = f"; as it is {as_it_is}" if as_it_is else ""
    return f"Yes: it takes {smallest.nodes} nodes at least, with {ways}{more}."


def _none_fits(seen: Forecast, kind: str) -> str:
    lean, batch = seen.of_any_batch, seen.train.global_batch
    if lean is None:
        return (
            f"It fits on no number of nodes up to {MOST_NODES} of {kind}: make the sequence or the"
            " model smaller."
        )
    allowed = " or ".join(str(n) for n in allowed_nodes(batch, seen.place.per_node))
    return (
        f"Yes, and the global batch is in the way: {lean.nodes} nodes of {kind} would do, with"
        f" {spelled(lean.options)} and global_batch {lean.train.global_batch}; global_batch {batch}"
        f" can be shared out over {allowed} of them only, and fits on none."
    )


__all__ = ["Forecast", "forecast", "spelled"]
