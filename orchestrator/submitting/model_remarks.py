"""What looks like a mistake in `train.model`, and would else come out after the turn in the queue.

Looks at config.json and at the names of the weights, as far as they can be read here. Whether a
model of this kind exists is for transformers to say, which a login node need not have.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.planner.families import shape_of
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.trained import parameter_names
from orchestrator.spec.train import TrainSpec
from orchestrator.submitting.family_remarks import of_family
from orchestrator.weightfiles.finding import INDEX, WHOLE, read_header

Config = Mapping[str, Any]

# Tokens of text without a tokenizer are its bytes.
_BYTES = 256
# What most families have; too short a name would be like many others.
_KEYS = frozenset(
    {
        "attention_dropout",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
        "vocab_size",
    }
)
# All keys of configurations in transformers 5.24 that look like one of these and are not.
_ALIKE = frozenset({"hidden_sizes", "num_position_embeddings", "sliding_windows"})
_COUNTS = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "vocab_size",
    }
)
# Families without a width of heads of their own: it is hidden_size over num_attention_heads.
_DIVIDED = frozenset(
    {
        "gpt2",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "smollm3",
        "starcoder2",
    }
)


def of_model(train: TrainSpec) -> Iterator[str]:
    """Yield a sentence on each mistake, for people."""
    path = train.model.path
    if path is None:
        yield from _of_keys(train.model.config or {})
        yield from _of_frozen(train.model.config or {}, train)
        yield from of_config(train.model.config or {}, train)
        return
    folder = Path(path)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        yield (
            f"train.model.path: there is no {folder}/config.json here; it is to be a local folder,"
            " and fsdpq downloads nothing; do the nodes see more?"
        )
        return
    except (OSError, ValueError) as problem:
        yield f"train.model.path: {folder}/config.json cannot be read here: {problem}"
        return
    if not isinstance(config, dict):
        yield f"train.model.path: {folder}/config.json holds no JSON object"
        return
    yield from of_config(config, train)
    yield from _of_weights(folder, config, train)


def of_config(config: Config, train: TrainSpec) -> Iterator[str]:
    """Yield what does not fit in a Hugging Face configuration, or to ``train``. Pure."""
    text = config.get("text_config")
    sizes = text if isinstance(text, Mapping) else config  # of several modalities: the text's
    yield from of_family(sizes)
    yield from _of_vocabulary(sizes, train)
    yield from _of_positions(sizes, train)
    yield from _of_heads(sizes)
    yield from _of_targets(config, train)


def _of_keys(config: Config) -> Iterator[str]:
    """Yield keys that are most likely mistyped: transformers keeps what it does not know, unused.

    One letter more, less or other; longer names that end alike are keys of some family.
    """
    for key in sorted(config.keys() - _KEYS - _ALIKE):
        near = get_close_matches(key, _KEYS, n=1, cutoff=0.85)
        if near and abs(len(near[0]) - len(key)) <= 1:
            yield f"train.model.config: is {key} meant to be {near[0]}? An unknown key does nothing"

    for key in sorted(_COUNTS & config.keys()):
        if config[key] is not None and type(config[key]) is not int:
            yield f"train.model.config.{key}: {config[key]!r} is no whole number"


def _of_targets(config: Config, train: TrainSpec) -> Iterator[str]:
    """Yield targets of adapters that the model, of a family known here, has not."""
    shape = _shape(config)
    if shape is None or train.lora is None or isinstance(train.lora.target_modules, str):
        return
    wrong = [n for n in train.lora.target_modules if n.rpartition(".")[2] not in shape.projections]
    none = len(wrong) == len(train.lora.target_modules)
    for name in wrong:
        yield (
            f"train.lora.target_modules: {name} is no linear layer of a block; there are"
            f" {', '.join(shape.projections)}{'. The job would end with that' if none else ''}"
        )


def _of_frozen(config: Config, train: TrainSpec) -> Iterator[str]:
    """Yield patterns that freeze nothing of a model of a family known here."""
    shape = _shape(config)
    if shape is None or shape.experts or "text_config" in config:  # names have a prefix there
        return
    names = list(parameter_names(shape))
    for pattern in train.freeze:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield (
                f"train.freeze: {pattern} is no name of a parameter; names are such as {names[0]},"
                f" {names[1]}"
            )


def _shape(config: Config) -> ModelShape | None:
    try:
        return shape_of(config)
    except SpecError:  # of another family, or it is said elsewhere
        return None


def _of_vocabulary(config: Config, train: TrainSpec) -> Iterator[str]:
    vocabulary = _size(config, "vocab_size")
    sources = [*train.data.each(), *(train.eval.each() if train.eval else ())]
    of_bytes = train.tokenizer == "bytes" and any(one.kind == "text_files" for one in sources)
    if of_bytes and vocabulary is not None and vocabulary < _BYTES:
        yield (
            f"train.model: vocab_size {vocabulary} is below {_BYTES}, and tokens are bytes; use"
            f" {_BYTES} or more, or name a tokenizer as data.tokenizer"
        )


def _of_positions(config: Config, train: TrainSpec) -> Iterator[str]:
    key = "n_positions" if "n_positions" in config else "max_position_embeddings"
    most, length = _size(config, key), train.data.seq_len
    if most is not None and length > most and not _is_stretched(config):
        yield f"train.data.seq_len: {length} is beyond the model's {key}, {most}"


def _is_stretched(config: Config) -> bool:
    """Return whether rotary positions are scaled, so that there may be more of them."""
    parts = (config.get("rope_scaling"), config.get("rope_parameters"))
    return any(isinstance(part, Mapping) and "factor" in part for part in parts)


def _of_heads(config: Config) -> Iterator[str]:
    old = config.get("model_type") == "gpt2"
    width, number = ("n_embd", "n_head") if old else ("hidden_size", "num_attention_heads")
    hidden, heads = _size(config, width), _size(config, number)
    divided = config.get("model_type") in _DIVIDED and config.get("head_dim") is None
    if divided and hidden and heads and hidden % heads:
        yield f"train.model: {width} {hidden} is not a multiple of {number} {heads}"
    shared = _size(config, "num_key_value_heads")
    if heads and shared and heads % shared:
        yield f"train.model: {number} {heads} is not a multiple of num_key_value_heads {shared}"


def _size(config: Config, key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and value > 0 else None


def _of_weights(folder: Path, config: Config, train: TrainSpec) -> Iterator[str]:
    if next(folder.glob("*.safetensors"), None) is None:
        yield f"train.model.path: {folder} holds no *.safetensors files here"
        return
    names = _names(folder) if train.freeze and "text_config" not in config else set()
    # In other files names lack a prefix that transformers adds, so patterns cannot be judged here.
    if not any(name.startswith("model.") for name in names):
        return
    names.add("lm_head.weight")  # a tied one is in no file
    for pattern in train.freeze:
        if not any(fnmatchcase(name, pattern) for name in names):
            first = ", ".join(sorted(names - {"lm_head.weight"})[:2])
            yield (
                f"train.freeze: {pattern} is no name of a weight in {folder}; names are such as"
                f" {first}"
            )


def _names(folder: Path) -> set[str]:
    """Return the names of all weights; none if that cannot be said without opening many files."""
    try:
        if (folder / INDEX).is_file():
            return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
        return set(read_header(folder / WHOLE))
    except Exception:  # whatever it is, the job says it better than a remark
        return set()
