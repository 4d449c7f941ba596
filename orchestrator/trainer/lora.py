"""LoRA: low-rank adapters beside frozen linear layers. Source: Hu et al., arXiv 2106.09685.

An adapter is two small linear layers inside the layer that it adapts, whose `forward` is replaced:
nothing is wrapped, so all names of the model stay as they are, in patterns and in checkpoints.
"""

import math
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import LoraSpec, TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks

ADAPTER_PARTS = ("lora_A", "lora_B")


def add_lora(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Give layers of the decoder blocks of ``model`` an adapter each, where `lora` says so.

    Called after `to_float8`, which replaces layers by others: adapters compute in bf16, as their
    few rows would gain nothing. Before sharding, so that a block and its adapters are gathered as
    one.

    Raises:
        SpecError: A target is no linear layer of a decoder block.
    """
    if spec.lora is None:
        return
    for layer in adapted_layers(model, spec.lora).values():
        _adapt(layer, spec.lora)


def adapted_layers(model: PreTrainedModel, lora: LoraSpec) -> dict[str, nn.Linear]:
    """Return the layers that get adapters, by name.

    Raises:
        SpecError: A target is no linear layer of a decoder block.
    """
    linear = {
        f"{block}.{name}": layer
        for block, module in decoder_blocks(model).items()
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    }
    if lora.target_modules == "all-linear":
        if not linear:
            raise SpecError(f"lora: {type(model).__name__} has no linear layers in its blocks")
        return linear
    chosen: dict[str, nn.Linear] = {}
    for target in lora.target_modules:
        found = {k: v for k, v in linear.items() if k == target or k.endswith(f".{target}")}
        if not found:
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise SpecError(
                f"lora.target_modules: {target} is no linear layer of a decoder block of"
                f" {type(model).__name__}; there are {known}"
            )
        chosen |= found
    return chosen


def is_adapter(name: str) -> bool:
    """Return whether the parameter called ``name`` belongs to an adapter."""
    return any(part in ADAPTER_PARTS for part in name.split("."))


@torch.no_grad()
def reset_adapters(module: nn.Module) -> None:
    """Draw the adapters in ``module``: one matrix at random, the other zero, so nothing changes."""
    for name, part in module.named_modules():
        last = name.rpartition(".")[2]
        if last == "lora_A":
            nn.init.kaiming_uniform_(part.get_parameter("weight"), a=math.sqrt(5))
        elif last == "lora_B":
            nn.init.zeros_(part.get_parameter("weight"))


def _adapt(layer: Any, lora: LoraSpec) -> None:
    options: dict[str, Any] = {"bias": False, "device": "meta", "dtype": torch.float32}
    layer.lora_dropout = nn.Dropout(lora.dropout)
    layer.lora_A = nn.Linear(layer.in_features, lora.rank, **options)
    layer.lora_B = nn.Linear(lora.rank, layer.out_features, **options)
    layer.lora_scale = lora.scale
    layer.forward = MethodType(_adapted, layer)


def _adapted(self: Any, inputs: torch.Tensor) -> Any:
    low = self.lora_A(self.lora_dropout(inputs))
    return type(self).forward(self, inputs) + self.lora_B(low) * self.lora_scale
