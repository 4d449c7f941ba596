"""The configuration of a Hugging Face model: read, made a model without memory, compared.

Transformers checks little of what it reads and fails in any way, so here, and here alone, any error
of its own becomes one message. Programs that lie beside a model are never run.
"""

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from orchestrator.errors import SpecError
from orchestrator.spec.train import ModelSpec
from orchestrator.weightfiles.texts import read_object

# Changes with the version of transformers or where files lie, and never what a model computes.
_IDLE = frozenset(
    {
        "architectures",
        "auto_map",
        "dtype",
        "id2label",
        "label2id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_PROGRAM = (
    "the model needs a program that lies beside it (auto_map in config.json), and such programs are"
    " never run; use a model of a family that transformers itself has"
)
_LONGEST = 300


def read_config(spec: ModelSpec, *, base: str | None = None) -> PretrainedConfig:
    """Return the configuration of ``spec``; ``base`` is where `path` lies now.

    Raises:
        SpecError: It cannot be read, or Hugging Face does not know such a model.
    """
    try:
        config = _read(spec, base)
        describe(config)
    except SpecError as problem:
        raise SpecError(f"model.path: {problem}") from None
    except Exception as problem:
        raise SpecError(f"model: {_words(problem)}") from None
    return config


def on_meta(config: PretrainedConfig, *attentions: str, **options: Any) -> PreTrainedModel:
    """Return the model without memory for its weights, with the first of ``attentions`` it has.

    Raises:
        SpecError: Hugging Face does not know such a causal language model, or it is not causal.
    """
    problem: Exception | None = None
    for attention in attentions:
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(
                    config, attn_implementation=attention, trust_remote_code=False, **options
                )
        except Exception as raised:
            problem = problem or raised
        else:
            return _causal(model)
    raise SpecError(
        f"model: {type(config).__name__} does not make a model: {_why(config, problem)}"
    )


def _why(config: PretrainedConfig, problem: Exception | None) -> str:
    if getattr(config, "auto_map", None):
        return _PROGRAM
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "transformers has no causal language model of this family"
    text = config.get_text_config()
    pad, words = (getattr(text, key, None) for key in ("pad_token_id", "vocab_size"))
    if isinstance(pad, int) and isinstance(words, int) and pad >= words:
        return f"pad_token_id {pad} is not below vocab_size {words}; set pad_token_id: null"
    return _words(problem)


def _causal(model: PreTrainedModel) -> PreTrainedModel:
    """Return ``model``, unless it is an encoder: it would see the token that it is to predict."""
    config = model.config
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and config.is_decoder is False:
        raise SpecError(
            f"model: {config.model_type} is an encoder, which sees the tokens that it is to"
            " predict; use a decoder such as llama, or set is_decoder: true in its configuration"
        )
    return model


def describe(config: PretrainedConfig) -> dict[str, Any]:
    """Return what the model was built from, in JSON's types."""
    plain: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return _lasting(plain)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the first thing that differs between two descriptions, in words; empty if none does.

    What only one of them knows is passed over: another version of transformers knows other keys.

    >>> difference({"eps": 1e-05, "old": 1}, {"eps": 0.5, "new": 2})
    'eps was 1e-05 and is 0.5'
    """
    for key in sorted(before.keys() & after.keys()):
        then, now = before[key], after[key]
        if key.endswith("_config") and isinstance(then, dict) and isinstance(now, dict):
            if found := difference(then, now):
                return f"{key}.{found}"
        elif then != now and json.dumps(then) != json.dumps(now):  # NaN is not equal to itself
            return f"{key} was {then!r} and is {now!r}"
    return ""


def _read(spec: ModelSpec, base: str | None) -> PretrainedConfig:
    if spec.path is None:
        return _of_family(spec.config or {})
    folder = Path(base or spec.path)
    found = read_object(folder / "config.json")
    if (family := found.get("model_type")) not in CONFIG_MAPPING:
        if "auto_map" in found:
            raise SpecError(f"{folder}: {_PROGRAM}")
        if isinstance(family, str):
            raise SpecError(f"{folder / 'config.json'}: {unknown_family(family, CONFIG_MAPPING)}")
    return AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _of_family(given: Mapping[str, Any]) -> PretrainedConfig:
    family = str(given.get("model_type"))
    if family not in CONFIG_MAPPING:
        raise ValueError(f"config: {unknown_family(family, CONFIG_MAPPING)}")
    return AutoConfig.for_model(**given)


def unknown_family(family: str, known: Collection[str]) -> str:
    """Return what to say of a `model_type` that transformers does not know; names near ones.

    >>> unknown_family("lama", ["bert", "llama", "mllama"])
    "model_type 'lama' is no family that this transformers knows; did you mean llama or mllama?"
    >>> unknown_family("x", ["bert"])
    "model_type 'x' is no family that this transformers knows, such as llama, qwen3 or mistral"
    """
    said = f"model_type {family!r} is no family that this transformers knows"
    folded = {name.lower(): name for name in known}
    near = [folded[name] for name in get_close_matches(family.lower(), folded)]
    if not near:
        return f"{said}, such as llama, qwen3 or mistral"
    *others, last = near
    names = f"{', '.join(others)} or {last}" if others else last
    return f"{said}; did you mean {names}?"


def _lasting(told: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _lasting(value) if key.endswith("_config") and isinstance(value, dict) else value
        for key, value in told.items()
        if key not in _IDLE and not key.startswith("_")
    }


def _words(problem: Exception | None) -> str:
    """Return an error's first paragraph in one line; what is no sentence has its kind before it."""
    said = " ".join(str(problem).strip().split("\n\n")[0].split())[:_LONGEST]
    if said and isinstance(problem, OSError | ValueError | ImportError):
        return said
    return f"{type(problem).__name__}: {said}"
