"""How long a step takes: the GPU's work, and the communication that it cannot hide. Pure."""

import re
from dataclasses import dataclass

from orchestrator.planner.gpus import Gpu
from orchestrator.planner.rates import rate
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.state import state_of
from orchestrator.planner.workload import Workload
from orchestrator.profile import FabricProfile

# What collectives reach of NVLink's bandwidth, and of that of HCAs between nodes (nccl-tests).
_OF_LINK = 0.75
_OF_HCA = 0.85
# How much of the communication goes on while the GPU computes, and so costs no time.
_HIDDEN = 0.9
# More time for recomputing: a forward is a third of a step; half of it is products that are kept.
_AGAIN = {"off": 1.0, "selective": 1.12, "full": 4 / 3}
# Deterministic kernels; measured on H200 (0.333 s instead of 0.311 s).
_DETERMINISTIC = 1.07
# An HCA's rate where a profile names the fabric and no rate, in Gbit/s.
_GBITS = {"infiniband": 200.0, "roce": 200.0, "efa": 100.0, "slingshot": 200.0, "omnipath": 100.0}
_SLOW_GBITS = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Bus bandwidths as nccl-tests states them, in bytes a second.

    Attributes:
        within: Between the GPUs of a node.
        between: Between nodes.
        known: Whether the latter stands in the site profile, or follows from it.
    """

    within: float
    between: float
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a step is likely to be.

    Attributes:
        step_s: Seconds of a step.
        compute_s: Of these, the GPU's own work.
        exposed_s: Of these, communication that nothing hides.
        share: Model operations as a part of the bf16 peak.
        within: How far off all of this may be, as a part of it.
        source: Where the rate comes from.
    """

    step_s: float
    compute_s: float
    exposed_s: float
    tokens_per_s_per_gpu: float
    share: float
    within: float
    source: str


def network(gpu: Gpu, fabric: FabricProfile, *, per_node: int) -> Network:
    """Return the bandwidths of a site's nodes.

    Args:
        gpu: What they have.
        fabric: The network between them.
        per_node: GPUs on a node.
    """
    within = gpu.nvlink_bytes_s * _OF_LINK
    if fabric.busbw_gbs:
        return Network(within=within, between=fabric.busbw_gbs * 1e9, known=True)
    found = re.search(r"(\d+)", fabric.rate or "")
    gbits = float(found.group(1)) if found else _GBITS.get(fabric.kind, _SLOW_GBITS)
    hcas = fabric.hcas_per_node or (per_node if fabric.kind in ("infiniband", "slingshot") else 1)
    between = min(gbits / 8 * 1e9 * hcas * _OF_HCA, within)
    known = bool(found and fabric.hcas_per_node)
    return Network(within=within, between=between, known=known)


def speed(shape: ModelShape, work: Workload, gpu: Gpu, net: Network, *, per_node: int) -> Speed:
    """Return how fast a step of ``work`` is likely to be."""
    reached = rate(shape, work, gpu)
    per_micro = shape.flops_per_token(work.seq_len) * work.tokens / (gpu.bf16_flops * reached.share)
    slower = _AGAIN[work.checkpointing] * (_DETERMINISTIC if work.deterministic else 1.0)
    frozen = 2 / 3 if work.rank else 1.0  # no gradients of the frozen matrices
    compute_s = per_micro * slower * frozen * work.micro_batches + _optimizer_s(shape, work, gpu)
    sent_s = _communication_s(shape, work, net, per_node=per_node)
    exposed_s = max(sent_s * (1 - _HIDDEN), sent_s - _HIDDEN * compute_s)
    step_s = compute_s + exposed_s
    tokens = work.tokens * work.micro_batches
    flops = shape.flops_per_token(work.seq_len) * tokens
    return Speed(
        step_s=step_s,
        compute_s=compute_s,
        exposed_s=exposed_s,
        tokens_per_s_per_gpu=tokens / step_s,
        share=flops / step_s / gpu.bf16_flops,
        within=reached.within if net.known or work.world_size <= per_node else reached.within + 0.1,
        source=reached.source,
    )


# Host memory's bandwidth for an optimizer on the processor, and PCIe's; bytes a second.
_HOST_BYTES_S = 40e9


def _optimizer_s(shape: ModelShape, work: Workload, gpu: Gpu) -> float:
    """Return the time of AdamW: parameters, gradients and moments are read, three are written."""
    moved = 28.0 * state_of(shape, work).trained / work.shard
    return moved / (_HOST_BYTES_S if work.offload else gpu.hbm_bytes_s)


def _communication_s(shape: ModelShape, work: Workload, net: Network, *, per_node: int) -> float:
    """Return the time of all collectives of a step, were nothing else to do."""
    state = state_of(shape, work)
    whole = state.first.whole + shape.layers * state.block.whole + state.ends.whole
    of_others = (work.shard - 1) / work.shard
    gathers = 2 if work.reshard else 1
    scatters = 1 if work.unsharded_sums else work.micro_batches
    sent = of_others * work.width * whole * gathers * work.micro_batches
    sent += of_others * 4.0 * state.trained * scatters
    seconds = sent / (net.within if work.shard <= per_node else net.between)
    if work.replicate > 1:
        summed = 2 * (work.replicate - 1) / work.replicate * 4.0 * state.trained / work.shard
        inside = work.world_size <= per_node
        seconds += summed * (1 if inside else per_node) / (net.within if inside else net.between)
    return seconds
