"""From a Hugging Face configuration to the shape of its model. Pure.

What a configuration leaves out has the value that transformers 5 gives it.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.planner.shape import ModelShape

Config = Mapping[str, Any]

# Far more than any model has.
_MOST, _MOST_LAYERS = 10**8, 10**4

_LLAMA: Config = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip
_QWEN: Config = {
    **_LLAMA, "intermediate_size": 22016, "vocab_size": 151936, "num_key_value_heads": 32,
    "sliding_window": 4096,
}  # fmt: skip
_GEMMA: Config = {
    "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "vocab_size": 256000, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA2: Config = {
    **_GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip

_DEFAULTS: Mapping[str, Config] = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": {
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        "qwen2": _QWEN,
        "qwen3": {**_QWEN, "head_dim": 128},
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3_text": {**_GEMMA2, "vocab_size": 262208},
        "mixtral": {
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        "qwen3_moe": {
            **_QWEN,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    }
)
FAMILIES = tuple(_DEFAULTS)
# Families that are called almost like one that is known here.
_ALIKE = ("ministral", "qwen")


def near_family(name: str) -> str | None:
    """Return the family that ``name`` is most likely meant to be, None if it may be one of its own.

    >>> near_family("lama"), near_family("llama4"), near_family("opt")
    ('llama', None, None)
    """
    if name in FAMILIES or name in _ALIKE or not name.isalpha():
        return None
    return next(iter(get_close_matches(name, FAMILIES, n=1, cutoff=0.85)), None)


def shape_of(config: Config) -> ModelShape:
    """Return the shape of the model of a Hugging Face configuration.

    >>> shape_of({"model_type": "llama"}).parameters
    6738415616

    Raises:
        SpecError: The family is not known here, or a size is no whole number.
    """
    family = str(config.get("model_type"))
    text = config.get("text_config")
    if family not in _DEFAULTS and isinstance(text, Mapping):  # several modalities: their text part
        config, family = text, str(text.get("model_type"))
    if near := near_family(family):
        raise SpecError(f"model: model_type {family}: did you mean {near}?")
    if family not in _DEFAULTS:
        raise SpecError(
            f"model: fsdpq plan does not know the shape of model_type {family}; it knows"
            f" {', '.join(FAMILIES)}. It may well be trained all the same: run some steps"
            " on one node and look at peak_reserved_gib in metrics.jsonl"
        )
    none = ("sliding_window",)  # null there is a value of its own
    given = {key: value for key, value in config.items() if value is not None or key in none}
    if "num_local_experts" in given:  # transformers writes either name
        given.setdefault("num_experts", given["num_local_experts"])
    merged = {**_DEFAULTS[family], **given}
    # A configuration that gives its heads and not those of keys has as many of both.
    if "num_attention_heads" in given and family == "llama":
        merged.setdefault("num_key_value_heads", given["num_attention_heads"])
    return _shape(family, merged)


def _shape(family: str, config: Config) -> ModelShape:
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    gemma = family.startswith("gemma")
    bias = bool(config.get("attention_bias", False)) and family not in ("mistral", "mixtral")
    return ModelShape(
        family=family,
        hidden=hidden,
        intermediate=_intermediate(family, config),
        layers=_size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads") if "num_key_value_heads" in config else heads,
        head_dim=_head_dim(config, hidden, heads),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family != "qwen2",
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        norms=4 if family in ("gemma2", "gemma3_text") else 2,
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3_text"),
        fp32_norm=gemma,
        softcap=family == "gemma2" and config.get("attn_logit_softcapping", 50.0) is not None,
        **_experts(family, config),
        **_windows(family, config),
    )


# How transformers 5 lays blocks with a window out: by default every so many see all tokens.
_PATTERN = {"gemma2": 2, "gemma3_text": 6}


def _windows(family: str, config: Config) -> dict[str, int]:
    """Return which blocks see no further than a window, and how far."""
    window, layers = config.get("sliding_window"), _size(config, "num_hidden_layers")
    qwen = family.startswith("qwen")
    if not isinstance(window, int) or (qwen and not config.get("use_sliding_window")):
        return {}
    if isinstance(kinds := config.get("layer_types"), list | tuple):
        windowed = sum(kind == "sliding_attention" for kind in kinds)
    elif family in _PATTERN:
        windowed = layers - layers // _size(
            {"sliding_window_pattern": _PATTERN[family], **config}, "sliding_window_pattern"
        )
    elif family in ("qwen2", "qwen3"):
        windowed = max(
            layers - _size({"max_window_layers": 28, **config}, "max_window_layers", least=0), 0
        )
    else:
        windowed = layers if family in ("mistral", "mixtral", "qwen3_moe") else 0
    return {"windowed": windowed, "window": window}


def _intermediate(family: str, config: Config) -> int:
    return _size(config, "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size")


def _experts(family: str, config: Config) -> dict[str, int]:
    if family not in ("mixtral", "qwen3_moe"):
        return {}
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise SpecError("model: fsdpq plan knows mixtures of experts whose blocks are all alike")
    return {
        "experts": _size(config, "num_experts"),
        "experts_per_token": _size(config, "num_experts_per_tok"),
    }


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    if "head_dim" in config:
        return _size(config, "head_dim")
    if hidden < heads:
        raise SpecError(f"model: hidden_size {hidden} is less than num_attention_heads {heads}")
    return hidden // heads


def _size(config: Config, key: str, *, least: int = 1) -> int:
    value = config.get(key)
    most = _MOST_LAYERS if key == "num_hidden_layers" else _MOST
    if type(value) is not int or not least <= value <= most:
        raise SpecError(
            f"model: {key} must be a whole number from {least} to {most}, and is {repr(value)[:80]}"
        )
    return value
