"""The configurations of tests.gpu.planner: models of 0.3 to 8 billion parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.spec.train import TrainSpec

_LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 8192}
MODELS: dict[str, dict[str, Any]] = {
    "0.35B": {
        **_LLAMA, "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8,
    },
    "1.1B": {
        **_LLAMA, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
    },
    "3.2B": {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8B": {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    },
    "qwen3 0.6B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip
_TINY: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One configuration: a model, sequences of a micro-batch, tokens of a sequence, and keys."""

    model: str
    batch: int
    seq_len: int
    keys: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    steps: int = 3

    @property
    def what(self) -> str:
        """The configuration in words."""
        keys = ", ".join(f"{key}: {_short(value)}" for key, value in self.keys.items())
        several = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return f"{self.model}, {self.batch} x {self.seq_len}{several}{', ' if keys else ''}{keys}"

    def spec(self, world_size: int, text: Path, *, tiny: bool) -> TrainSpec:
        """Return it as the trainer reads it; ``tiny`` makes all of it small."""
        config = MODELS[self.model]
        if tiny:
            config = {**config, **_TINY, "head_dim": 16}
        batch, length = (1, 32) if tiny else (self.batch, self.seq_len)
        return TrainSpec.model_validate(
            {
                "model": {"config": config},
                "data": {"text_files": [str(text)], "seq_len": length},
                "steps": 100,
                "micro_batch": batch,
                "global_batch": batch * self.micro_batches * world_size,
                "deterministic": False,
                **self.keys,
            }
        )


def _short(value: object) -> str:
    return str(value).replace("'", "").replace("{", "").replace("}", "")


_AC = "activation_checkpointing"
_HSDP = {"replicate": 2, "shard": 1}

CASES: dict[str, Case] = {
    "small": Case("0.35B", 8, 2048),
    "small-whole-loss": Case("0.35B", 8, 2048, {"loss_chunks": 1}),
    "small-fp32": Case("0.35B", 4, 2048, {"precision": "fp32"}),
    "qwen3": Case("qwen3 0.6B", 4, 2048),
    "base": Case("1.1B", 4, 4096),
    "deterministic": Case("1.1B", 4, 4096, {"deterministic": True}),
    "selective": Case("1.1B", 4, 4096, {_AC: "selective"}),
    "full": Case("1.1B", 4, 4096, {_AC: "full"}),
    "long": Case("1.1B", 1, 8192),
    "no-reshard": Case("1.1B", 4, 4096, {"reshard_after_forward": False}),
    "accumulate": Case("1.1B", 2, 4096, micro_batches=2),
    "accumulate-unsharded": Case("1.1B", 2, 4096, {"accumulate": "unsharded"}, micro_batches=2),
    "tied-3b": Case("3.2B", 2, 4096),
    "tied-3b-selective": Case("3.2B", 4, 4096, {_AC: "selective"}),
    "8b": Case("8B", 1, 2048),
    "8b-full": Case("8B", 2, 4096, {_AC: "full"}),
    "8b-selective": Case("8B", 1, 4096, {_AC: "selective"}),
    "lora": Case("1.1B", 4, 4096, {"lora": {"rank": 16}}),
    "8b-lora": Case("8B", 1, 4096, {"lora": {"rank": 16}, _AC: "full"}),
    "compile": Case("1.1B", 4, 4096, {"compile": True}),
    "fp8": Case("1.1B", 4, 4096, {"compile": True, "fp8": "rowwise"}),
    "offload": Case("0.35B", 4, 2048, {"cpu_offload": True}),
    # Last: its communicators stay, and would count as CUDA's own memory of what comes after.
    "hsdp": Case("1.1B", 4, 4096, {"mesh": _HSDP}),
}
