"""Activation checkpointing: a block's results are computed again on the way back, not kept.

A block's `forward` is replaced, and nothing is wrapped: names of modules, parameters and of what
stands in a checkpoint stay as they are. The replaced one runs inside the hooks of `fully_shard`, so
the block's parameters are gathered once for the second computation and the gradients of it.
"""

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_mm.default,
}
# Attention is dear to compute again and small to keep; so is the maximum that FP8 scales by.
_KEPT = {
    torch.ops.aten.max.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
# By name, since they exist only where the package does: flash-attn's own operators.
_ATTENTION_NAMES = ("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward")


def checkpoint_blocks(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Let the decoder blocks of ``model`` compute again what `activation_checkpointing` says.

    `full` keeps a block's input alone. `selective` also keeps what attention gives and every second
    matrix product, as torchtitan does: most of the memory for a part of the second computation.
    """
    if spec.activation_checkpointing == "off":
        return
    forward = _full if spec.activation_checkpointing == "full" else _selective
    for block in decoder_blocks(model).values():
        block.forward = MethodType(forward, block)


def _full(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return type(self).forward(self, *args, **kwargs)
    return checkpoint(type(self).forward, self, *args, use_reentrant=False, **kwargs)


def _selective(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # Without gradients nothing comes back for what would be kept.
    if not torch.is_grad_enabled():
        return type(self).forward(self, *args, **kwargs)
    return checkpoint(
        type(self).forward, self, *args, use_reentrant=False, context_fn=_contexts, **kwargs
    )


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(Policy())  # type: ignore[no-untyped-call]


class Policy:
    """Says what to keep of one run of a block: asked once for each operator, twice over."""

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}

    def __call__(self, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Return whether the result of ``op`` is kept."""
        if op in _KEPT or str(op).rpartition(".")[0] in _ATTENTION_NAMES:
            return CheckpointPolicy.MUST_SAVE
        if op in _PRODUCTS:
            again = bool(context.is_recompute)
            self._products[again] += 1
            if self._products[again] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
