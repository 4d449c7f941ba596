"""From a Hugging Face configuration to the shape of its model. Pure.

What a configuration leaves out has the value that transformers 5 gives it (`defaults`).
"""

from collections.abc import Mapping
from difflib import get_close_matches

from orchestrator.errors import SpecError
from orchestrator.planner.defaults import DEFAULTS, Config
from orchestrator.planner.shape import ModelShape

# Far more than any model has.
_MOST, _MOST_LAYERS = 10**8, 10**4

FAMILIES = tuple(DEFAULTS)
# Families that are called almost like one that is known here.
_ALIKE = ("ministral", "mllama", "olmo", "phi", "pixtral", "qwen", "smolvlm")


class UnknownShapeError(SpecError):
    """The shape of a family is not known here; its models may train all the same."""


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
        UnknownShapeError: The family is not known here.
        SpecError: It is misspelt, or a size is no whole number.
    """
    family = str(config.get("model_type"))
    text = config.get("text_config")
    if family not in DEFAULTS and isinstance(text, Mapping):  # several modalities: their text part
        config, family = text, str(text.get("model_type"))
    if near := near_family(family):
        raise SpecError(f"model: model_type {family}: did you mean {near}?")
    if family not in DEFAULTS:
        raise UnknownShapeError(
            f"memory, speed and checkpoints of model_type {family}: fsdpq plan knows the shapes of"
            f" {', '.join(FAMILIES)}. It may well be trained all the same; run some steps on one"
            " node and look at peak_reserved_gib in metrics.jsonl"
        )
    none = ("sliding_window", "num_key_value_heads")  # null there is a value of its own
    given = {key: value for key, value in config.items() if value is not None or key in none}
    if "num_local_experts" in given:  # transformers writes either name
        given.setdefault("num_experts", given["num_local_experts"])
    merged = {**DEFAULTS[family], **given}
    return _shape(family, merged)


def _shape(family: str, config: Config) -> ModelShape:
    if config.get("resid_pdrop") and family == "phi3":
        raise SpecError("model: fsdpq plan knows phi3 without dropout, and resid_pdrop is not 0")
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    gemma, olmo = family.startswith("gemma"), family == "olmo2"
    bias = bool(config.get("attention_bias", False)) and family not in _PLAIN
    return ModelShape(
        family=family,
        hidden=hidden,
        intermediate=_intermediate(family, config),
        layers=_size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, hidden, heads),
        vocab=_size(config, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family != "qwen2",
        mlp_bias=family in _MLP_BIAS and bool(config.get("mlp_bias", False)),
        norms=4 if family in ("gemma2", "gemma3_text") else 2,
        norms_after=olmo,
        qk_norm=family in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2"),
        across_heads=olmo,
        fp32_norm=gemma or olmo,
        fused=family == "phi3",
        softcap=family == "gemma2" and config.get("attn_logit_softcapping", 50.0) is not None,
        **_experts(family, config),
        **_windows(family, config),
    )


# Families that never have biases, and those that may have them in the MLP.
_PLAIN = ("mistral", "mixtral", "phi3")
_MLP_BIAS = ("llama", "granite", "smollm3")
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
    elif family == "smollm3":
        windowed = _unrotated(config, layers) if config.get("use_sliding_window") else 0
    else:
        windowed = layers if family in ("mistral", "mixtral", "qwen3_moe", "phi3") else 0
    return {"windowed": windowed, "window": window}


def _unrotated(config: Config, layers: int) -> int:
    """Return how many blocks have no rotary embedding (SmolLM3): with windows, it is those."""
    if isinstance(rotated := config.get("no_rope_layers"), list | tuple):
        return sum(not one for one in rotated[:layers])
    return layers // _size({"no_rope_layer_interval": 4, **config}, "no_rope_layer_interval")


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


def _kv_heads(config: Config, heads: int) -> int:
    """Return how many heads keys have: as many as queries where nothing is said, or null."""
    said = config.get("num_key_value_heads") is not None
    return _size(config, "num_key_value_heads") if said else heads


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
