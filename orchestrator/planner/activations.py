"""Bytes that a decoder block keeps between forward and backward. Pure.

Written down tensor by tensor from what PyTorch's autograd saves for the models of transformers 5
(`torch.autograd.graph.saved_tensors_hooks`; the tests count again), and from what Inductor's
partitioner saves where blocks are compiled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.workload import Workload

Tensors = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Activations of one block and one micro-batch, in bytes.

    Attributes:
        kept: From its forward to its backward.
        again: Beside those, computed again for its backward.
        mlp: Part of `kept` and `again` that its backward has freed once it comes to attention.
        working: Beside all of it, while the MLP's backward is under way.
        attention: The same, while that of attention is.
        forward: Beside what the blocks keep, at the height of the last one's forward.
    """

    kept: float
    again: float
    mlp: float
    working: float
    attention: float
    forward: float


def block_bytes(shape: ModelShape, work: Workload, *, processors: int = 132) -> BlockBytes:
    """Return what a block's activations take.

    Args:
        shape: The model.
        work: What a rank does.
        processors: Streaming multiprocessors of the GPU; deterministic attention uses more memory
            the more of them would be idle otherwise.
    """
    saved = saved_per_token(shape, work)
    kept = _kept(saved, shape, work)
    again = sum(size for name, size in saved.items() if name not in kept)
    mlp = sum(size for name, size in (saved | kept).items() if name in _MLP)
    adding = _adding(saved, shape, work)
    gradients = work.width * shape.hidden * (2 if "down_proj" in work.adapted else 1)
    working = _after_norm("norm2", _mlp_backward(shape, work), saved, shape, work)
    if work.checkpointing != "off" and adding:  # it comes again, with gradients there
        working = max(working, adding + gradients)
    return BlockBytes(
        kept=work.tokens * sum(kept.values()),
        again=work.tokens * again if work.checkpointing != "off" else 0.0,
        mlp=work.tokens * mlp,
        working=work.tokens * working,
        attention=work.tokens
        * _after_norm("norm1", _attention_backward(shape, work, processors), saved, shape, work),
        forward=work.tokens
        * max(3 * work.width * shape.hidden, _scores(shape, work) - mlp, adding),
    )


_MLP = frozenset(
    {
        "norm2.fp32", "norm2.scaled", "norm2.out", "norm2.before", "mlp.input", "gate", "silu", "up", "gate_up",
        "product", "down", "router",
    }
)  # fmt: skip


def saved_per_token(shape: ModelShape, work: Workload) -> Tensors:
    """Return the bytes per token that a block saves for its backward, by tensor."""
    if 0 < work.masked < 1:  # of a mean block, since they are not all alike
        masked, plain = (saved_per_token(shape, replace(work, masked=on)) for on in (1.0, 0.0))
        names = masked | plain
        return {
            name: work.masked * masked.get(name, 0.0) + (1 - work.masked) * plain.get(name, 0.0)
            for name in names
        }
    eager = dict(_eager(shape, work))
    if not work.compiled:
        return eager
    width = float(work.width * shape.hidden)
    dropped = (
        "fp32", "scaled", "norm1.rms", "silu", "scores", "bias", "out.copy", *_cast_again(work)
    )  # fmt: skip
    kept = {name: size for name, size in eager.items() if not name.endswith(dropped)}
    # Norms and the activation are computed again from what goes in; residuals too.
    after = {"norm1.before": width, "norm2.before": width, "mlp.input": width}
    extra = {"input": width} | (after if shape.norms_after else {"attention.residual": width})
    if work.all_scores:  # what goes into softmax, its maxima and sums, and what comes out
        extra["scores"] = 2 * _scores(shape, work) + 8.0 * shape.heads
    if shape.qk_norm:
        extra |= {
            "q.before": work.width * shape.query_width,
            "k.before": work.width * shape.kv_width,
        }
    return kept | extra


def _cast_again(work: Workload) -> tuple[str, ...]:
    """Return the inputs of products that FP8 need not keep.

    Their casts for the weights' gradients are computed again, like the norms and the activation
    that they are of. An adapter's product is in bf16, and needs its input as it is.
    """
    return () if work.fp8 == "off" or work.rank else ("norm1.out", "norm2.out", "product")


def _eager(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    width, hidden = work.width, shape.hidden
    yield from _going_in("norm1", "input", shape, work, *shape.into_attention)
    yield from _head_norms(shape, work)
    yield from _attention(shape, work)
    if shape.norms == 4 or shape.norms_after:
        name = "norm1" if shape.norms_after else "norm1b"
        yield from _norm(name, hidden, shape, work, out=False)
    yield from _going_in("norm2", "mlp.input", shape, work, *shape.into_mlp)
    wide = shape.intermediate * max(shape.experts_per_token, 1)
    if shape.experts:
        yield "router", 4.0 * 3 * shape.experts + width * hidden * 2 * shape.experts_per_token
    if shape.fused:  # both are views of one product
        yield from (("gate_up", 2.0 * width * wide), ("silu", float(width * wide)))
    else:
        yield from ((name, float(width * wide)) for name in ("gate", "silu", "up"))
    if _feeds(work, "down_proj"):
        yield "product", float(width * wide)
    if shape.norms == 4 or shape.norms_after:
        name = "norm2" if shape.norms_after else "norm2b"
        yield from _norm(name, hidden, shape, work, out=False)
    for name in work.adapted:
        yield f"{name}.low", float(width * work.rank)
        if work.dropout:  # what is left of the input, and a byte a number that says which
            yield f"{name}.dropped", (width + 1.0) * shape.projections[name][0]


def _going_in(
    norm: str, plain: str, shape: ModelShape, work: Workload, *names: str
) -> Iterator[tuple[str, float]]:
    """Yield what is saved before the projections ``names``: a norm, or what it would norm."""
    feeds = _feeds(work, *names)
    if not shape.norms_after:
        yield from _norm(norm, shape.hidden, shape, work, out=feeds)
    elif feeds:
        yield plain, float(work.width * shape.hidden)


def _feeds(work: Workload, *names: str) -> bool:
    """Return whether the input of one of these projections is needed for a weight's gradient."""
    if work.rank and work.dropout:
        return False  # that of an adapter is a copy of it
    return any(name in work.adapted if work.rank else name not in work.idle for name in names)


def _norm(
    name: str, size: int, shape: ModelShape, work: Workload, *, out: bool, heads: int = 1
) -> Iterator[tuple[str, float]]:
    """Yield what an RMS norm saves: its input in fp32, and that scaled, before the weight."""
    yield f"{name}.fp32", 4.0 * size
    yield f"{name}.rms", 4.0 * heads
    if not work.rank and name not in work.idle:  # needed for the weight's gradient
        yield f"{name}.scaled", (4.0 if shape.fp32_norm else work.width) * size
    if out:
        yield f"{name}.out", float(work.width * size)


def _head_norms(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    if shape.qk_norm:
        heads = (1, 1) if shape.across_heads else (shape.heads, shape.kv_heads)
        yield from _norm("q_norm", shape.query_width, shape, work, out=False, heads=heads[0])
        yield from _norm("k_norm", shape.kv_width, shape, work, out=False, heads=heads[1])


def _attention(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    """Yield queries, keys, values after rotation, and what attention saves of its own."""
    width = work.width
    # Without a kernel for it, and with a mask, keys and values are repeated for each group.
    kv_width = shape.query_width if work.all_scores or work.masked else shape.kv_width
    yield "q", float(width * shape.query_width)
    # What comes of the product itself is another tensor, if it is repeated for a mask.
    repeated = ".repeated" if work.masked and shape.kv_heads < shape.heads else ""
    yield f"k{repeated}", float(width * kv_width)
    # Values that are a view of one product with queries and keys hold all of it.
    view = shape.fused and not work.all_scores and not repeated
    yield f"v{repeated}", float(width * (_first_product(shape) if view else kv_width))
    if work.masked and not work.all_scores:
        yield "bias", float(width * work.seq_len)  # of the mask, made anew in each block
    if work.all_scores:
        # Softmax gives fp32, which is cast.
        yield "softmax.scores", (4.0 + width if width != 4 else 4.0) * shape.heads * work.seq_len
        if _feeds(work, "o_proj"):
            yield "out", float(width * shape.query_width)
    else:
        yield "out", float(width * shape.query_width)
        yield "lse", 4.0 * shape.heads
        # Rotated in parts, queries lie head by head, and so does what attention gives.
        if shape.fused and _feeds(work, "o_proj"):
            yield "out.copy", float(width * shape.query_width)


def _first_product(shape: ModelShape) -> int:
    """Return the width of what the first projection of attention gives."""
    return shape.projections[shape.into_attention[0]][1]


def _kept(saved: Tensors, shape: ModelShape, work: Workload) -> Tensors:
    """Return which bytes per token stay from the forward to the backward."""
    if work.checkpointing == "off":
        return saved
    first: Tensors = {"input": float(work.width * shape.hidden)}
    if work.checkpointing == "full":
        return first
    # Attention without a kernel of its own is no operator that the policy knows.
    names = () if work.all_scores else ("out", "lse")
    attention = {name: saved[name] for name in names}
    return first | attention | dict(_every_second(shape, work))


def _every_second(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    """Yield the products that selective checkpointing keeps: every second one of a block."""
    names = {
        "gate_proj": "gate", "up_proj": "up", "gate_up_proj": "gate_up", "down_proj": "down",
        "v_proj": "v", "qkv_proj": "v",
    }  # fmt: skip
    products: list[tuple[str, int]] = []
    for name, (_, fan_out, _) in shape.projections.items():
        products.append((names.get(name, name), fan_out))
        if name in work.adapted:
            products += [(f"{name}.low", work.rank), (f"{name}.high", fan_out)]
    for name, size in products[::2]:
        if name == "down" and work.compiled:
            continue  # nothing needs it again, and compiled code does not hold what nothing needs
        yield name, float(work.width * size * max(shape.experts_per_token, 1))


def _mlp_backward(shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token beside what is saved, at the height of the MLP's backward.

    The gradient of the residual; of the product of gate and up, and of both of them, while the
    product itself is no longer needed. Compiled code that computes the whole block again holds one
    more of them (0.25 of 0.28 GiB, 1.1 B on H200); which one was not looked at.
    """
    wide = shape.intermediate * max(shape.experts_per_token, 1)
    again = work.width * wide if work.compiled and work.checkpointing == "full" else 0
    if work.fp8 != "off":
        return work.width * (shape.hidden + 2 * wide) + again + _casts(shape, work, wide)
    return work.width * (shape.hidden + (2 if _feeds(work, "down_proj") else 3) * wide) + again


def _casts(shape: ModelShape, work: Workload, wide: int) -> float:
    """Return the bytes per token of casts to FP8 that are there at that height, one a number.

    With row-wise scales each gradient is cast along one axis for the gradient of the input, and
    along the other for that of the weight: Inductor makes all four casts of gate's and up's
    gradients at once, and keeps two numbers in bf16 beside them. With one scale there is a cast
    less. What of the hidden width is there follows from two measurements (1.1 B on H200).
    """
    one_scale = work.fp8 == "tensorwise"
    return 3.0 * wide + shape.hidden if one_scale else 4.0 * wide + 3 * shape.hidden


def _scores(shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token of the scores before softmax, where there are any."""
    return float(work.width * shape.heads * work.seq_len) if work.all_scores else 0.0


def _adding(saved: Tensors, shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token beside what is saved, while an adapter's part is added.

    Where gate and up are one product: that, the adapter's, that one scaled, and the residual; less
    what is saved later. Elsewhere it is less than others need.
    """
    if "gate_up_proj" not in work.adapted or work.compiled:
        return 0.0
    later = sum(saved.get(name, 0.0) for name in ("gate_up", "silu", "product"))
    return work.width * (6.0 * shape.intermediate + shape.hidden) - later


def _after_norm(
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


def _attention_backward(shape: ModelShape, work: Workload, processors: int) -> float:
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
