"""Bytes beside what is saved, while the backward of a block is under way. Pure."""

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.tensors import Tensors, feeds
from orchestrator.planner.workload import Workload


def mlp_backward(shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token beside what is saved, at the height of the MLP's backward.

    The gradient of the residual; of the product of gate and up, and of both of them, while the
    product itself is no longer needed. Compiled code that computes the whole block again holds one
    more of them (0.25 of 0.28 GiB, 1.1 B on H200); which one was not looked at.
    """
    wide = shape.intermediate * max(shape.experts_per_token, 1)
    again = work.width * wide if work.compiled and work.checkpointing == "full" else 0
    if work.fp8 != "off":
        return work.width * (shape.hidden + 2 * wide) + again + _casts(shape, work, wide)
    return work.width * (shape.hidden + (2 if feeds(work, "down_proj") else 3) * wide) + again


def _casts(shape: ModelShape, work: Workload, wide: int) -> float:
    """Return the bytes per token of casts to FP8 that are there at that height, one a number.

    With row-wise scales each gradient is cast along one axis for the gradient of the input, and
    along the other for that of the weight: Inductor makes all four casts of gate's and up's
    gradients at once, and keeps two numbers in bf16 beside them. With one scale there is a cast
    less. What of the hidden width is there follows from two measurements (1.1 B on H200).
    """
    one_scale = work.fp8 == "tensorwise"
    return 3.0 * wide + shape.hidden if one_scale else 4.0 * wide + 3 * shape.hidden


def adding(saved: Tensors, shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token beside what is saved, while an adapter's part is added.

    Where gate and up are one product: that, the adapter's, that one scaled, and the residual; less
    what is saved later. Elsewhere it is less than others need.
    """
    if "gate_up_proj" not in work.adapted or work.compiled:
        return 0.0
    later = sum(saved.get(name, 0.0) for name in ("gate_up", "silu", "product"))
    return work.width * (6.0 * shape.intermediate + shape.hidden) - later


def after_norm(
    name: str, height: float, saved: Tensors, shape: ModelShape, work: Workload
) -> float:
    """Return ``height`` in bytes per token, or that of a norm whose backward comes first (OLMo 2).

    The gradient, and five numbers in fp32 for each: of what is normed, and four in the square's
    backward. What the norm had saved is gone by then in part, and later all of it.
    """
    if not shape.norms_after or work.compiled:
        return height
    scaled = saved.get(f"{name}.scaled", 0.0)
    first = (20.0 + work.width) * shape.hidden - scaled
    return max(first, height - scaled - saved[f"{name}.fp32"])


def attention_backward(shape: ModelShape, work: Workload, processors: int) -> float:
    """Return the same for attention: its gradients and the sums of those of the queries.

    Flash attention adds up the gradient of the queries in fp32; to be deterministic each of
    several groups of processors has a sum of its own (PyTorch, flash_api.cpp, mha_bwd).
    """
    if work.all_scores:
        return _scores_backward(shape, work)
    if work.masked:
        return _masked_backward(shape, work)
    width = work.width
    gradients = width * (shape.hidden + 2 * shape.query_width + 2 * shape.kv_width)
    if shape.kv_heads < shape.heads:
        gradients += 2 * width * shape.query_width
    splits = -(-processors // (work.batch * shape.heads)) if work.deterministic else 1
    sums = 4.0 * splits * shape.query_width
    # Norms of queries and keys have four numbers in fp32 for each, once what attention itself had
    # saved is gone.
    gone = 2 * width * (shape.query_width + shape.kv_width)
    norms = 16.0 * shape.query_width + 2 * width * shape.hidden - gone if shape.qk_norm else 0.0
    return max(gradients + sums, norms)


# The memory-efficient kernel adds keys' and values' gradients up in fp32 too, if heads are wider
# than its tiles (PyTorch, mem_eff_attention/kernel_backward.h, kOutputInRF).
_TILE = 128


def _masked_backward(shape: ModelShape, work: Workload) -> float:
    """Return the same in bytes per token for the kernel that takes a mask.

    The gradients of its result, of queries, and of keys and values as they were repeated.
    """
    sums = (1 if shape.head_dim <= _TILE else 3) * 4.0 * shape.query_width
    return work.width * (shape.hidden + 4 * shape.query_width) + sums


def _scores_backward(shape: ModelShape, work: Workload) -> float:
    """Return the same in bytes per token, where softmax has its own backward.

    The gradients of what softmax gives and of what goes in, in fp32; of its cast to bf16 nothing is
    left by then.
    """
    cast = work.width if work.width < 4 else 0
    return (8.0 - cast) * shape.heads * work.seq_len + work.width * shape.hidden
