"""FP8 matrix products by torchao. Weights, gradients and checkpoints keep their precision."""

import importlib
from types import ModuleType

import torch
from torch import nn
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks

# Tensor cores take FP8 from compute capability 8.9 on, row-wise scales from 9.0 on.
_CAPABILITY = (9, 0)
_MULTIPLE = 16
# Small layers beside the large ones: what routes tokens needs its digits, and adapters have a few
# rows only. The last part of a module's name.
_KEPT = ("gate", "router", "lora_A", "lora_B", "lora_a", "lora_b")


def to_float8(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Let the linear layers of the decoder blocks multiply in FP8, as `fp8` says.

    Names, parameters and what stands in a checkpoint stay as they are. The head stays in bf16.

    Raises:
        SpecError: This GPU, this installation or this model cannot do it; says why.
    """
    if spec.fp8 == "off":
        return
    check_device()
    if spec.micro_batch * spec.data.seq_len % _MULTIPLE:
        raise SpecError(
            f"fp8: micro_batch {spec.micro_batch} x seq_len {spec.data.seq_len} is no multiple of"
            f" {_MULTIPLE}, which tensor cores ask for; change one of them, or use fp8: off"
        )
    torchao = _torchao()
    wanted = float8_layers(model)
    torchao.convert_to_float8_training(
        model,
        module_filter_fn=lambda module, name: name in wanted,
        config=torchao.Float8LinearConfig.from_recipe_name(spec.fp8),
    )


def check_device() -> None:
    """Refuse what has no FP8.

    Raises:
        SpecError: There is no GPU, or an older one than Hopper.
    """
    if not torch.cuda.is_available():
        raise SpecError("fp8: needs a Hopper GPU (H100, H200) or a newer one; there is none here")
    if torch.cuda.get_device_capability() < _CAPABILITY:
        raise SpecError(
            f"fp8: needs a Hopper GPU (H100, H200) or a newer one, not"
            f" {torch.cuda.get_device_name()}; use fp8: off"
        )


def _torchao() -> ModuleType:
    try:
        return importlib.import_module("torchao.float8")
    except ImportError as problem:
        raise SpecError(
            f"fp8: torchao cannot be imported ({problem}); pip install 'fsdpq[fp8]', or use fp8:"
            " off"
        ) from None


def float8_layers(model: PreTrainedModel) -> set[str]:
    """Return the names of the layers that multiply in FP8.

    Raises:
        SpecError: The sides of one of them are no multiples of 16, which tensor cores ask for.
    """
    inside = {id(part) for block in decoder_blocks(model).values() for part in block.modules()}
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) in inside
        and not set(name.split(".")) & set(_KEPT)
    }
    for name, module in found.items():
        if module.in_features % _MULTIPLE or module.out_features % _MULTIPLE:
            raise SpecError(
                f"fp8: {name} is {module.out_features} x {module.in_features}; both have to be"
                f" multiples of {_MULTIPLE}. Use fp8: off"
            )
    return set(found)
