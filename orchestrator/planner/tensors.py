"""The tensors that a decoder block saves for its backward, in bytes per token. Pure.

Written down one by one from what PyTorch's autograd saves for the models of transformers 5
(`torch.autograd.graph.saved_tensors_hooks`; the tests count again), and from what Inductor's
partitioner saves where blocks are compiled.
"""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.workload import Workload

Tensors = dict[str, float]


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
        extra["scores"] = 2 * scores(shape, work) + 8.0 * shape.heads
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
    if feeds(work, "down_proj"):
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
    needed = feeds(work, *names)
    if not shape.norms_after:
        yield from _norm(norm, shape.hidden, shape, work, out=needed)
    elif needed:
        yield plain, float(work.width * shape.hidden)


def feeds(work: Workload, *names: str) -> bool:
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
        if feeds(work, "o_proj"):
            yield "out", float(width * shape.query_width)
    else:
        yield "out", float(width * shape.query_width)
        yield "lse", 4.0 * shape.heads
        # Rotated in parts, queries lie head by head, and so does what attention gives.
        if shape.fused and feeds(work, "o_proj"):
            yield "out.copy", float(width * shape.query_width)


def _first_product(shape: ModelShape) -> int:
    """Return the width of what the first projection of attention gives."""
    return shape.projections[shape.into_attention[0]][1]


def scores(shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token of the scores before softmax, where there are any."""
    return float(work.width * shape.heads * work.seq_len) if work.all_scores else 0.0
