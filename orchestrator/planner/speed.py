"""How long a step takes: the GPU's work, and the communication that it cannot hide. Pure."""

import re
from dataclasses import dataclass

from orchestrator.planner.gpus import Gpu
from orchestrator.planner.rates import Rate, rate
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.state import state_of
from orchestrator.planner.workload import Workload
from orchestrator.profile import FabricProfile

# What collectives reach of NVLink's bandwidth, and of that of HCAs between nodes (nccl-tests). Two
# H200 reached 0.54 to 0.60 of it with 0.25 to 1 GiB (tests/gpu/RESULTS.md: 268 GB/s at most).
_OF_LINK = 0.75
_OF_LINK_OF_TWO = 0.6
_OF_HCA = 0.85
# How much of the communication costs no time because the GPU computes meanwhile. Collectives take
# processors and memory from it: one gathering less (`reshard_after_forward: false`) saved 7 ms of
# 1.1 B on 2 H200, of which it takes 8 ms alone.
_HIDDEN = 0.3
# More time for recomputing, which is a third at most: a forward is a third of a step. Measured on
# H200, forward and backward alone, eager: selective 1.21 (1.1 B) and 1.19 (3.2 B), full 1.28.
# Compiled, selective recomputing is a guess.
_AGAIN = {"off": 1.0, "selective": 1.2, "full": 1.28}
_AGAIN_COMPILED = {"off": 1.0, "selective": 1.12, "full": 1.28}
# Deterministic kernels; measured on H200 (0.333 s instead of 0.296 s).
_DETERMINISTIC = 1.12
# An HCA's rate where a profile names the fabric and no rate, in Gbit/s.
_GBITS = {"infiniband": 200.0, "roce": 200.0, "efa": 100.0, "slingshot": 200.0, "omnipath": 100.0}
_SLOW_GBITS = 25.0


THREADS = 8  # of a rank, where nobody says


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
    within = gpu.nvlink_bytes_s * (_OF_LINK if per_node > 2 else _OF_LINK_OF_TWO)
    if fabric.busbw_gbs:
        return Network(within=within, between=fabric.busbw_gbs * 1e9, known=True)
    found = re.search(r"(\d+)", fabric.rate or "")
    gbits = float(found.group(1)) if found else _GBITS.get(fabric.kind, _SLOW_GBITS)
    hcas = fabric.hcas_per_node or (per_node if fabric.kind in ("infiniband", "slingshot") else 1)
    between = min(gbits / 8 * 1e9 * hcas * _OF_HCA, within)
    known = bool(found and fabric.hcas_per_node)
    return Network(within=within, between=between, known=known)


def speed(
    shape: ModelShape,
    work: Workload,
    gpu: Gpu,
    net: Network,
    *,
    per_node: int,
    threads: int = THREADS,
) -> Speed:
    """Return how fast a step of ``work`` is likely to be.

    Args:
        shape: The model.
        work: What a rank does.
        gpu: On what.
        net: What it sends over.
        per_node: GPUs of a node.
        threads: Threads of a rank's processor, for an optimizer that is offloaded.
    """
    reached = rate(shape, work, gpu)
    blocks_s = _blocks_s(shape, work, gpu, reached) * work.micro_batches
    compute_s = blocks_s + _moving_s(shape, work, gpu) + _optimizer_s(shape, work, gpu, threads)
    sent_s = _communication_s(shape, work, net, per_node=per_node)
    exposed_s = max(sent_s * (1 - _HIDDEN), sent_s - 0.9 * blocks_s)
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


# The time in which a processor starts the kernels of a block's forward and backward, hooks of FSDP
# included: no GPU is faster. On H200, beside what is counted below: 24 blocks of 0.35 B took 0.16 s
# and 28 of Qwen 3 0.6 B, which norms queries and keys too, 0.23 s, compiled as well (third steps);
# 26 of Gemma 3 1 B, whose norms are of more kernels, 0.35 s. Row-wise FP8 took 0.26 s for 24
# blocks, tensor-wise 0.31 s for 28 of 3.2 B.
_LAUNCH_S = {2: 6.6e-3, 4: 13.5e-3}  # by norms of a block
_LAUNCH_NORMED_S = 8.2e-3
_LAUNCH_FP8_S = 10.5e-3
# An adapter has small kernels of its own: 16 blocks with seven took 0.27 s, compiled 32 0.42 s.
_LAUNCH_ADAPTER_S, _LAUNCH_ADAPTER_COMPILED_S = 1.5e-3, 0.9e-3
# Each operator goes through Python where a policy asks which to keep: 0.91 s for 32 with adapters.
_LAUNCH_SELECTIVE = 1.65


def _launch_s(shape: ModelShape, work: Workload) -> float:
    """Return the time in which a processor starts a block's forward and backward."""
    if work.fp8 != "off":
        each = _LAUNCH_FP8_S
    elif shape.qk_norm and shape.norms == 2:
        each = _LAUNCH_NORMED_S
    else:
        each = _LAUNCH_S[shape.norms]
    adapter = _LAUNCH_ADAPTER_COMPILED_S if work.compiled else _LAUNCH_ADAPTER_S
    each += adapter * len(work.adapted)
    again = work.checkpointing == "selective" and not work.compiled
    return each * (_LAUNCH_SELECTIVE if again else 1.0)


def _blocks_s(shape: ModelShape, work: Workload, gpu: Gpu, reached: Rate) -> float:
    """Return the time of forward and backward of a micro-batch."""
    flops = shape.flops_per_token(work.seq_len) * work.tokens
    again = (_AGAIN_COMPILED if work.compiled else _AGAIN)[work.checkpointing]
    slower = again * (_DETERMINISTIC if work.deterministic else 1.0)
    seconds = flops / (gpu.bf16_flops * reached.share) + _masked_s(shape, work, gpu, reached)
    seconds *= slower * _with_gradients(shape, work)
    return max(seconds, _launch_s(shape, work) * shape.layers)


# What attention with a mask reaches of the peak, the operations of all pairs of tokens counted: the
# kernel that takes a mask is older than Hopper, and leaves none of them out. 1.1 B on 2 H200, whose
# step took 0.374 s instead of 0.296 s.
_OF_MASKED = 0.21


def _masked_s(shape: ModelShape, work: Workload, gpu: Gpu, reached: Rate) -> float:
    """Return how much longer attention takes where it has a mask."""
    flops = 12.0 * shape.layers * shape.query_width * work.seq_len * work.tokens * work.masked
    slower = 1 / _OF_MASKED - 1 / reached.share
    return max(flops / gpu.bf16_flops * slower, 0.0)


def _with_gradients(shape: ModelShape, work: Workload) -> float:
    """Return the part of forward and backward that is done where not all of the model trains.

    A third each: forward, gradients of what goes in, gradients of weights. Blocks below all that
    trains have a forward alone.
    """
    if work.rank:
        return 2 / 3
    state = state_of(shape, work)
    first = next((n for n, one in enumerate(state.blocks) if one.trained), shape.layers)
    below = 0 if state.first.trained or shape.tied else first
    weights = sum(one.trained for one in state.blocks) / sum(one.whole for one in state.blocks)
    return (1 + (shape.layers - below) / shape.layers + weights) / 3


# What operators bound by memory reach of its bandwidth.
_OF_HBM = 0.7
# Bytes a word of the vocabulary and a token, from logits in bf16 to their gradient: in fp32, with
# log-softmax and its gradient, or compiled into two kernels.
_LOSS_BYTES, _LOSS_BYTES_COMPILED = 40.0, 12.0


def _moving_s(shape: ModelShape, work: Workload, gpu: Gpu) -> float:
    """Return the time of what only moves bytes on the GPU.

    Each gathering casts a rank's part from fp32 and copies the whole out of the buffer; before each
    scattering gradients are copied into one in fp32; from the second micro-batch on they are added.
    """
    state = state_of(shape, work)
    whole = sum(one.whole for one in (state.first, *state.blocks, state.ends))
    gathers = (2 if work.reshard else 1) * work.micro_batches
    scatters = 1 if work.unsharded_sums else work.micro_batches
    narrow = work.width
    moved = gathers * ((4 + narrow) * whole / work.shard + 2 * narrow * whole)
    moved += scatters * (narrow + 4.0) * state.trained
    if work.unsharded_sums:  # a cast, and sums of what is whole
        moved += (work.micro_batches * (narrow + 4.0) + 12.0 * work.micro_batches) * state.trained
    else:
        moved += (work.micro_batches - 1) * 12.0 * state.trained / work.shard
    words = work.tokens * work.micro_batches * shape.vocab
    moved += words * (_LOSS_BYTES_COMPILED if work.compiled else _LOSS_BYTES)
    return moved / (gpu.hbm_bytes_s * _OF_HBM)


# AdamW reads parameters, gradients and moments and writes three of them; clipping reads the
# gradients, and reads and writes them again.
_ADAMW_BYTES = 28.0 + 12.0
# What a thread of a processor moves for the same, and all of a rank's at most; bytes a second. With
# one thread 0.35 B took 0.6 s of a step on 2 H200; that more threads are faster is assumed.
_THREAD_BYTES_S = 12.4e9
_HOST_BYTES_S = 50e9
# PCIe's, one way, of a GPU of the fifth generation (64 GB/s) with pinned memory; assumed.
_PCIE_BYTES_S = 50e9


def _optimizer_s(shape: ModelShape, work: Workload, gpu: Gpu, threads: int) -> float:
    """Return the time of clipping and AdamW; where they are offloaded, with all transfers.

    Those are parameters in fp32 for each gathering, and gradients once a micro-batch. The optimizer
    waits for the last of them and the next forward for it, so nothing of it is hidden.
    """
    state = state_of(shape, work)
    moved = _ADAMW_BYTES * state.trained / work.shard
    if not work.offload:
        return moved / (gpu.hbm_bytes_s * _OF_HBM)
    sent = state.parameters * (2 if work.reshard else 1) + state.gradients
    host = min(_THREAD_BYTES_S * max(threads, 1), _HOST_BYTES_S)
    return moved / host + sent * work.micro_batches / _PCIE_BYTES_S


def _communication_s(shape: ModelShape, work: Workload, net: Network, *, per_node: int) -> float:
    """Return the time of all collectives of a step, were nothing else to do."""
    state = state_of(shape, work)
    whole = sum(one.whole for one in (state.first, *state.blocks, state.ends))
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
