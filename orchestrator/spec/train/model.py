"""Which model: `train.model`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from orchestrator.keys.fields import Named, Strict


def _named_family(value: object) -> object:
    """Return the configuration that a word stands for: a family with its own default sizes."""
    return {"model_type": value} if isinstance(value, str) else value


class ModelSpec(Strict):
    """Which Hugging Face causal language model: a configuration, or a folder with weights.

    `config` may be the name of a family alone, such as qwen3. With `path`, the logits of the
    sharded model are compared with those of `from_pretrained` before the first step, unless
    `parity_check` is off or the model is too large for one process.
    """

    config: Annotated[dict[str, Any] | None, BeforeValidator(_named_family)] = None
    path: Named | None = None
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    parity_check: Literal["auto", "off"] = "auto"

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSpec":
        if (self.config is None) == (self.path is None):
            raise ValueError(
                "give either `config:` (a Hugging Face configuration, initialised from `seed`) or"
                " `path:` (a local directory with config.json and *.safetensors), and not both"
            )
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config.model_type is required, such as llama")
        if self.config is not None and "auto_map" in self.config:
            raise ValueError(
                "config.auto_map names a program, and such programs are never run; leave it out"
            )
        return self
