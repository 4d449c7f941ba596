"""How large a checkpoint is, how long one takes and how often to take one. Pure."""

from dataclasses import dataclass

from orchestrator.checkpoint.interval import bounded_s
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.state import state_of
from orchestrator.planner.workload import Workload
from orchestrator.spec.train import CheckpointSpec

# Bytes a second that a rank writes, hashes and publishes in a save that blocks: 12.3 GiB by two
# ranks took 8.1 s to tmpfs and 14.2 s to disk (H200, 4 and 8 files a rank).
_RANK_BYTES_S = 0.47e9
# What a parallel file system may take from a whole job at best, where nobody knows better.
_SYSTEM_BYTES_S = 20e9
# For how long a save in the background blocks, and what a rank's writer process takes in host
# memory: it imports torch. Estimates: `python -m tests.gpu.saving` measures the first.
_BLOCKED_S = 0.1
_WRITER = 400 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Checkpoints of a run.

    Attributes:
        checkpoint_bytes: Parameters and both moments in fp32; of adapters, theirs alone.
        disk_bytes: What those need that are kept at the same time, and the one being written.
        save_s: Seconds of a save; what lies on a slow file system takes longer.
        blocked_s: For how many of them the training waits.
        host_bytes: Host memory for each GPU that a save in the background needs; 0 without.
        every_s: Seconds between two saves, as `every_steps: auto` has them: those that lose least
            by Daly's formula, but in the background no fewer than ten times what a save takes.
        every_steps: The same in steps; None where nothing is known of a step.
    """

    checkpoint_bytes: float
    disk_bytes: float
    save_s: float
    blocked_s: float
    host_bytes: float
    every_s: float
    every_steps: int | None


def saves(
    shape: ModelShape,
    work: Workload,
    spec: CheckpointSpec,
    *,
    step_s: float | None,
    gpus: bool = True,
) -> Saves:
    """Return what checkpoints of ``work`` take.

    Args:
        shape: Of the model.
        work: What a rank does.
        spec: How it is saved.
        step_s: Seconds of a step; None where unknown.
        gpus: Whether it trains on GPUs: without, `mode: auto` is `sync`.
    """
    state = state_of(shape, work)
    # As many bytes as gradients: what trains, in fp32.
    weights = state.gradients if work.base_is_kept else state.parameters
    size = (weights + state.optimizer) * work.shard
    save_s = size / min(_RANK_BYTES_S * work.world_size, _SYSTEM_BYTES_S)
    behind = spec.mode == "async" or (spec.mode == "auto" and gpus)
    blocked_s = min(_BLOCKED_S, save_s) if behind else save_s
    whole_s = save_s if behind else None
    every_s = bounded_s(blocked_s, spec.mtbf_s, whole_s=whole_s, max_s=spec.max_interval_s)
    return Saves(
        checkpoint_bytes=size,
        disk_bytes=size * (spec.keep_last + 1),
        save_s=save_s,
        blocked_s=blocked_s,
        # Copies of the same shards are shared out over the ranks that have them.
        host_bytes=size / work.world_size + _WRITER if behind else 0.0,
        every_s=every_s,
        every_steps=max(1, int(every_s / step_s)) if step_s else None,
    )
