"""Which model: `train.model`."""

from typing import Any, Literal

from pydantic import model_validator

from orchestrator.fields import Line, Strict


class ModelSpec(Strict):
    """Which Hugging Face causal language model: a configuration, or a folder with weights."""

    config: dict[str, Any] | None = None
    path: Line | None = None
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSpec":
        if (self.config is None) == (self.path is None):
            raise ValueError(
                "give either `config:` (a Hugging Face configuration, initialised from `seed`) or"
                " `path:` (a local directory with config.json and *.safetensors), and not both"
            )
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config.model_type is required, such as llama")
        return self
