"""What looks like a mistake in a model's family, or what its defaults do. Pure."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from orchestrator.planner.families import near_family

_END = "the job would end with that"
# The encoders of which transformers 5 makes a language model too, causal only as a decoder.
_ENCODERS = frozenset(
    {
        "bert",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
# Where transformers 5 sets a padding token by default that a small vocabulary has not.
_PADS: Mapping[str, int] = MappingProxyType(
    {"glm": 151329, "glm4": 151329, "phi3": 32000, "smollm3": 128004}
)


def of_family(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on each mistake in a Hugging Face configuration."""
    family = str(config.get("model_type"))
    if meant := near_family(family):
        yield f"train.model: is model_type {family} meant to be {meant}? As it is, {_END}"
    if family in _ENCODERS and config.get("is_decoder") is not True:
        yield (
            f"train.model: {family} is an encoder, which sees the tokens that it is to predict;"
            f" {_END}. Use a decoder such as llama, or set is_decoder: true in its configuration"
        )
    pad, words = config.get("pad_token_id", _PADS.get(family)), config.get("vocab_size")
    if type(pad) is int and type(words) is int and pad >= words:
        yield (
            f"train.model: pad_token_id {pad}, {_whose(config, family)}, is not below vocab_size"
            f" {words}; {_END}. Set pad_token_id: null in its configuration"
        )


def _whose(config: Mapping[str, Any], family: str) -> str:
    return "as it is set" if "pad_token_id" in config else f"the default of {family}"
