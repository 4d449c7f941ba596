"""Adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from collections.abc import Collection
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.export.skeleton import Skeleton
from orchestrator.export.sources import Sources

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


def adapter_weights(sources: Sources) -> dict[str, str]:
    """Return name in PEFT's file to name in the checkpoint.

    Raises:
        SpecError: The run trained no adapters.
    """
    if sources.lora is None:
        raise SpecError("--adapter: this run trained no adapters; leave it out")
    return {
        f"{_PREFIX}{layer}.lora_{part}.weight": f"{layer}.lora_{part}.weight"
        for layer in sources.adapted
        for part in "AB"
    }


def adapter_config(sources: Sources, model: Skeleton, *, base: str) -> dict[str, Any]:
    """Return PEFT's configuration. Source: peft 0.21, LoraConfig."""
    assert sources.lora is not None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": sources.lora.rank,
        "lora_alpha": sources.lora.effective_alpha,
        "lora_dropout": sources.lora.dropout,
        "target_modules": target_modules(sources.adapted, model.linear),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }


def target_modules(adapted: Collection[str], linear: Collection[str]) -> list[str]:
    """Return what makes PEFT adapt these layers and no others, as short as that can be said.

    >>> target_modules(["l.0.q", "l.1.q"], ["l.0.q", "l.0.v", "l.1.q", "l.1.v"])
    ['q']
    >>> target_modules(["l.0.q"], ["l.0.q", "l.1.q"])
    ['l.0.q']
    """
    short = sorted({name.rpartition(".")[2] for name in adapted})
    meant = {name for name in linear if name.rpartition(".")[2] in short}
    return short if meant == set(adapted) else sorted(adapted)
