"""Which weights train where `freeze` names some: patterns against Hugging Face's names. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from orchestrator.planner.shape import ModelShape

_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class Trained:
    """How many parameters train, and which weights of each block do not.

    Attributes:
        embedding: Of the embedding; with a tied head, of both.
        blocks: Of each block.
        idle: The weights of each block that do not train, by their short names.
        norm: Of the last norm.
        head: Of a head of its own.
    """

    embedding: int
    blocks: tuple[int, ...]
    idle: tuple[frozenset[str], ...]
    norm: int
    head: int

    def first(self) -> int:
        """Return the first block that gradients come to; the number of blocks if none."""
        if self.embedding:
            return 0
        return next((index for index, size in enumerate(self.blocks) if size), len(self.blocks))


@lru_cache(maxsize=64)
def trained(shape: ModelShape, freeze: tuple[str, ...]) -> Trained:
    """Return what trains of ``shape`` but for what ``freeze`` names."""

    def open_(name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in freeze)

    sizes, idle = [], []
    for index in range(shape.layers):
        parts = [
            (short, size, open_(f"model.layers.{index}.{name}"))
            for name, short, size in block_parameters(shape)
        ]
        sizes.append(sum(size for _, size, trains in parts if trains))
        idle.append(frozenset(short for short, _, trains in parts if not trains))
    # One parameter with two names is frozen by either.
    both = open_(_EMBEDDING) and (open_(_HEAD) or not shape.tied)
    return Trained(
        embedding=shape.embedding if both else 0,
        blocks=tuple(sizes),
        idle=tuple(idle),
        norm=shape.hidden if open_(_NORM) else 0,
        head=shape.embedding if open_(_HEAD) and not shape.tied else 0,
    )


def parameter_names(shape: ModelShape) -> Iterator[str]:
    """Yield Hugging Face's names of all parameters; a tied head has one, too."""
    yield from (_EMBEDDING, _NORM, _HEAD)
    for index in range(shape.layers):
        yield from (f"model.layers.{index}.{name}" for name, _, _ in block_parameters(shape))


def block_parameters(shape: ModelShape) -> Iterator[tuple[str, str, int]]:
    """Yield name within a block, short name and size of each parameter."""
    for name, (fan_in, fan_out, bias) in shape.projections.items():
        attention = name in (*shape.into_attention, "o_proj")
        if shape.experts and not attention:
            continue
        part = f"{'self_attn' if attention else 'mlp'}.{name}"
        yield f"{part}.weight", name, fan_in * fan_out
        if bias:
            yield f"{part}.bias", f"{name}.bias", fan_out
    if shape.experts:
        yield from _experts(shape)
    if shape.qk_norm:
        queries, keys = shape.head_norms
        yield "self_attn.q_norm.weight", "q_norm", queries
        yield "self_attn.k_norm.weight", "k_norm", keys
    for name, short in _norms(shape):
        yield f"{name}.weight", short, shape.hidden


def _experts(shape: ModelShape) -> Iterator[tuple[str, str, int]]:
    one = shape.experts * shape.hidden * shape.intermediate
    yield "mlp.gate.weight", "router", shape.experts * shape.hidden
    yield "mlp.experts.gate_up_proj", "gate_proj", 2 * one
    yield "mlp.experts.down_proj", "down_proj", one


def _norms(shape: ModelShape) -> Iterator[tuple[str, str]]:
    if shape.norms_after:
        yield "post_attention_layernorm", "norm1"
        yield "post_feedforward_layernorm", "norm2"
        return
    yield "input_layernorm", "norm1"
    if shape.norms == 2:
        yield "post_attention_layernorm", "norm2"
        return
    yield "post_attention_layernorm", "norm1b"
    yield "pre_feedforward_layernorm", "norm2"
    yield "post_feedforward_layernorm", "norm2b"
