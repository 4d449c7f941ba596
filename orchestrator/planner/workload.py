"""What one rank does in a step, as far as memory and time depend on it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.planner.shape import ModelShape
from orchestrator.spec.train import TrainSpec, mesh_shape, rows_at_once

Checkpointing = Literal["off", "selective", "full"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("off", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one rank does in a step.

    Attributes:
        batch: Sequences of a micro-batch.
        micro_batches: How many it takes one after the other.
        replicate: Copies of the parameters.
        shard: Ranks over which each copy is spread.
        width: Bytes of a number in matrix products: 2 for bf16, 4 for fp32.
        reshard: Whether gathered blocks are dropped between forward and backward.
        unsharded_sums: Whether gradients add up unsharded, in fp32, over micro-batches.
        fused_loss: Whether softmax and loss are compiled into one, so no fp32 logits exist.
        loss_rows: Tokens whose logits exist at once; all of them, if the loss is taken whole.
        prefetch: Blocks that are gathered ahead; 0 is PyTorch's own order.
        fused_attention: Whether SDPA has a kernel for it. Without one it takes the products one by
            one, as `eager` does. CUDA has none in fp32 where groups of heads share their keys
            (flash attention is of half precision; the memory-efficient one has no `enable_gqa`).
        rank: Of LoRA; 0 where all parameters are trained.
        dropout: Whether what goes into adapters is dropped out in part.
        adapted: The projections that LoRA adapts.
        freeze: Patterns for names of what does not train.
        idle: Short names of the weights that do not train, of the one block that is looked at.
        masked: The share of the blocks whose attention is given a mask, be it for documents or for
            windows. Flash attention takes none, so SDPA's memory-efficient kernel does it.
        several_masks: Whether each sequence has a mask of its own.
        base_is_kept: Whether checkpoints leave frozen weights out, since a directory has them.
    """

    batch: int
    seq_len: int
    micro_batches: int = 1
    replicate: int = 1
    shard: int = 1
    width: int = 2
    checkpointing: Checkpointing = "off"
    attention: str = "sdpa"
    compiled: bool = False
    fp8: str = "off"
    reshard: bool = True
    unsharded_sums: bool = False
    fused_loss: bool = False
    loss_rows: int = 0
    offload: bool = False
    deterministic: bool = True
    prefetch: int = 0
    fused_attention: bool = True
    rank: int = 0
    dropout: bool = False
    adapted: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    idle: frozenset[str] = frozenset()
    masked: float = 0.0
    several_masks: bool = False
    base_is_kept: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.seq_len

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.replicate * self.shard

    @property
    def all_scores(self) -> bool:
        """Whether attention holds a number for each head and each two tokens of a sequence."""
        return self.attention == "eager" or not self.fused_attention

    @property
    def in_parts(self) -> bool:
        """Whether the loss is taken of some tokens after the other."""
        return 0 < self.loss_rows < self.tokens


def workload(spec: TrainSpec, shape: ModelShape, *, world_size: int) -> Workload:
    """Return what each of ``world_size`` ranks does in a step of ``spec``.

    Raises:
        SpecError: The mesh does not fit the ranks.
    """
    replicate, shard = mesh_shape(spec, world_size)
    tokens = spec.micro_batch * spec.data.seq_len
    rank, adapted, dropout = _lora(getattr(spec, "lora", None), tuple(shape.projections))
    masked = _masked(spec, shape)
    return Workload(
        batch=spec.micro_batch,
        seq_len=spec.data.seq_len,
        micro_batches=max(spec.global_batch // (spec.micro_batch * world_size), 1),
        replicate=replicate,
        shard=shard,
        width=2 if spec.precision == "bf16" else 4,
        checkpointing=spec.activation_checkpointing,
        attention="eager" if shape.softcap else spec.model.attention,
        compiled=spec.compile,
        fp8=spec.fp8,
        reshard=spec.reshard_after_forward,
        unsharded_sums=spec.accumulate == "unsharded",
        fused_loss=spec.compile,
        loss_rows=rows_at_once(tokens, shape.vocab, spec.loss_chunks),
        offload=spec.cpu_offload,
        deterministic=spec.deterministic,
        prefetch=spec.prefetch,
        # With a mask the heads of keys are repeated beforehand (transformers), which helps here.
        fused_attention=spec.precision == "bf16" or shape.kv_heads == shape.heads or masked == 1,
        rank=rank,
        dropout=dropout,
        adapted=adapted,
        freeze=spec.freeze,
        masked=masked,
        several_masks=spec.data.packing == "documents",
        base_is_kept=(rank > 0 or bool(spec.freeze)) and spec.model.path is not None,
    )


def _masked(spec: TrainSpec, shape: ModelShape) -> float:
    """Return the share of the blocks whose attention gets a mask (transformers' `sdpa_mask`)."""
    if spec.model.attention != "sdpa":
        return 0.0
    if spec.data.packing == "documents":
        return 1.0
    return shape.windowed / shape.layers if 0 < shape.window <= spec.data.seq_len else 0.0


def _lora(given: Any, linear: tuple[str, ...]) -> tuple[int, tuple[str, ...], bool]:
    """Return rank, targets and dropout of `train.lora`, whatever kind of object holds them.

    Targets are those of ``linear``, the projections of a block, that it names.
    """
    if given is None:
        return 0, (), False
    asked = given if isinstance(given, Mapping) else vars(given)
    targets = asked.get("target_modules") or asked.get("targets") or linear
    words = (targets,) if isinstance(targets, str) else tuple(targets)
    named = tuple(one for one in linear if any(word in (one, "all-linear") for word in words))
    return int(asked.get("rank", 16)), named or linear, bool(asked.get("dropout"))
