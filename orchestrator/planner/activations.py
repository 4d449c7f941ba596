"""Bytes that a decoder block keeps between forward and backward, and needs beside them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.heights import adding, after_norm, attention_backward, mlp_backward
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.tensors import Tensors, saved_per_token, scores
from orchestrator.planner.workload import Workload


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
    added = adding(saved, shape, work)
    gradients = work.width * shape.hidden * (2 if "down_proj" in work.adapted else 1)
    working = after_norm("norm2", mlp_backward(shape, work), saved, shape, work)
    if work.checkpointing != "off" and added:  # it comes again, with gradients there
        working = max(working, added + gradients)
    return BlockBytes(
        kept=work.tokens * sum(kept.values()),
        again=work.tokens * again if work.checkpointing != "off" else 0.0,
        mlp=work.tokens * mlp,
        working=work.tokens * working,
        attention=work.tokens
        * after_norm("norm1", attention_backward(shape, work, processors), saved, shape, work),
        forward=work.tokens * max(3 * work.width * shape.hidden, scores(shape, work) - mlp, added),
    )


_MLP = frozenset(
    {
        "norm2.fp32", "norm2.scaled", "norm2.out", "norm2.before", "mlp.input", "gate", "silu",
        "up", "gate_up", "product", "down", "router",
    }
)  # fmt: skip


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
