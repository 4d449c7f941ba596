"""Bytes that a decoder block keeps between forward and backward. Pure.

Written down tensor by tensor from what PyTorch's autograd saves for the models of transformers 5
(`torch.autograd.graph.saved_tensors_hooks`; the tests count again), and from what Inductor's
partitioner saves where blocks are compiled.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.workload import Workload

Tensors = dict[str, float]
_ORDER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """Activations of one block and one micro-batch, in bytes.

    Attributes:
        kept: From its forward to its backward.
        again: Beside those, computed again for its backward.
        mlp: Part of `kept` and `again` that its backward has freed once it comes to attention.
        working: Beside all of it, while the MLP's backward is under way.
        attention: The same, while that of attention is.
    """

    kept: float
    again: float
    mlp: float
    working: float
    attention: float


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
    return BlockBytes(
        kept=work.tokens * sum(kept.values()),
        again=work.tokens * again if work.checkpointing != "off" else 0.0,
        mlp=work.tokens * mlp,
        working=work.tokens * _mlp_backward(shape, work),
        attention=_attention_backward(shape, work, processors=processors),
    )


_MLP = frozenset(
    {"norm2.fp32", "norm2.scaled", "norm2.out", "gate", "silu", "up", "product", "down", "router"}
)


def saved_per_token(shape: ModelShape, work: Workload) -> Tensors:
    """Return the bytes per token that a block saves for its backward, by tensor."""
    eager = dict(_eager(shape, work))
    if not work.compiled:
        return eager
    width = work.width * shape.hidden
    dropped = ("fp32", "scaled", "norm1.rms", "silu", "scores")
    kept = {name: size for name, size in eager.items() if not name.endswith(dropped)}
    # Norms and the activation are computed again from what goes in; residuals too.
    extra = {"input": width, "attention.residual": width}
    if shape.qk_norm:
        extra |= {
            "q.before": work.width * shape.query_width,
            "k.before": work.width * shape.kv_width,
        }
    return kept | extra


def _eager(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    width, hidden = work.width, shape.hidden
    yield from _norm("norm1", hidden, shape, work, out=_feeds(work, "q_proj", "k_proj", "v_proj"))
    yield from _head_norms(shape, work)
    yield from _attention(shape, work)
    if shape.norms == 4:
        yield from _norm("norm1b", hidden, shape, work, out=False)
    yield from _norm("norm2", hidden, shape, work, out=_feeds(work, "gate_proj", "up_proj"))
    wide = shape.intermediate * max(shape.experts_per_token, 1)
    if shape.experts:
        yield "router", 4.0 * 3 * shape.experts + width * hidden * 2 * shape.experts_per_token
    for name in ("gate", "silu", "up"):
        yield name, float(width * wide)
    if _feeds(work, "down_proj"):
        yield "product", float(width * wide)
    if shape.norms == 4:
        yield from _norm("norm2b", hidden, shape, work, out=False)
    for name in work.adapted:
        yield f"{name}.low", float(width * work.rank)


def _feeds(work: Workload, *names: str) -> bool:
    """Return whether the input of one of these projections is needed for a weight's gradient."""
    return not work.rank or any(name in work.adapted for name in names)


def _norm(
    name: str, size: int, shape: ModelShape, work: Workload, *, out: bool, heads: int = 1
) -> Iterator[tuple[str, float]]:
    """Yield what an RMS norm saves: its input in fp32, and that scaled, before the weight."""
    yield f"{name}.fp32", 4.0 * size
    yield f"{name}.rms", 4.0 * heads
    if not work.rank:  # needed for the weight's gradient
        yield f"{name}.scaled", (4.0 if shape.fp32_norm else work.width) * size
    if out:
        yield f"{name}.out", float(work.width * size)


def _head_norms(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    if shape.qk_norm:
        yield from _norm("q_norm", shape.query_width, shape, work, out=False, heads=shape.heads)
        yield from _norm("k_norm", shape.kv_width, shape, work, out=False, heads=shape.kv_heads)


def _attention(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    """Yield queries, keys, values after rotation, and what attention saves of its own."""
    width, eager = work.width, work.attention == "eager"
    # The eager one repeats keys and values for each group of queries.
    kv_width = shape.query_width if eager else shape.kv_width
    yield "q", float(width * shape.query_width)
    yield "k", float(width * kv_width)
    yield "v", float(width * kv_width)
    if eager:
        yield "softmax.scores", (4.0 + width if width != 4 else 4.0) * shape.heads * work.seq_len
        if _feeds(work, "o_proj"):
            yield "out", float(width * shape.query_width)
    else:
        yield "out", float(width * shape.query_width)
        yield "lse", 4.0 * shape.heads


def _kept(saved: Tensors, shape: ModelShape, work: Workload) -> Tensors:
    """Return which bytes per token stay from the forward to the backward."""
    if work.checkpointing == "off":
        return saved
    first: Tensors = {"input": float(work.width * shape.hidden)}
    if work.checkpointing == "full":
        return first
    attention = {name: saved[name] for name in ("out", "lse") if name in saved}
    return first | attention | dict(_every_second(shape, work))


def _every_second(shape: ModelShape, work: Workload) -> Iterator[tuple[str, float]]:
    """Yield the products that selective checkpointing keeps: every second one of a block."""
    names = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "v_proj": "v"}
    products: list[tuple[str, int]] = []
    for name in _ORDER:
        products.append((names.get(name, name), shape.projections[name][1]))
        if name in work.adapted:
            products += [(f"{name}.low", work.rank), (f"{name}.high", shape.projections[name][1])]
    for name, size in products[::2]:
        yield name, float(work.width * size * max(shape.experts_per_token, 1))


def _mlp_backward(shape: ModelShape, work: Workload) -> float:
    """Return the bytes per token beside what is saved, at the height of the MLP's backward.

    The gradient of the residual; of the product of gate and up, and of both of them, while the
    product itself is no longer needed.
    """
    wide = shape.intermediate * max(shape.experts_per_token, 1)
    return work.width * (shape.hidden + (2 if _feeds(work, "down_proj") else 3) * wide)


def _attention_backward(shape: ModelShape, work: Workload, *, processors: int) -> float:
    """Return the same for attention, in bytes: its gradients and the sums of those of the queries.

    Flash attention adds up the gradient of the queries in fp32; to be deterministic each of
    several groups of processors has a sum of its own (PyTorch, flash_api.cpp, mha_bwd).
    """
    width, grouped = work.width, shape.kv_heads < shape.heads
    gradients = width * (shape.hidden + 2 * shape.query_width + 2 * shape.kv_width)
    if grouped and work.attention != "eager":
        gradients += 2 * width * shape.query_width
    if work.attention == "eager":
        sums = 3 * 4.0 * shape.heads * work.seq_len
    else:
        splits = -(-processors // (work.batch * shape.heads)) if work.deterministic else 1
        sums = 4.0 * splits * shape.query_width
    # Norms of queries and keys have four numbers in fp32 for each, once what attention itself had
    # saved is gone.
    gone = 2 * width * (shape.query_width + shape.kv_width)
    norms = 16.0 * shape.query_width + 2 * width * shape.hidden - gone if shape.qk_norm else 0.0
    return work.tokens * max(gradients + sums, norms)
