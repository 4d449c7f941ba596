"""The configurations of tests.gpu.planner: models of 0.3 to 8 billion parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import Gpu, find
from orchestrator.planner.memory import memory
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.speed import network, speed
from orchestrator.planner.workload import Workload, workload
from orchestrator.profile import FabricProfile
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
    # What tests.gpu.speed calls 1.1B: other heads.
    "1.1B, 32 heads": {
        **_LLAMA, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
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
    "mistral 1.3B": {
        "model_type": "mistral", "vocab_size": 32768, "hidden_size": 2048,
        "intermediate_size": 7168, "num_hidden_layers": 22, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 1024,
        "max_position_embeddings": 8192,
    },
    # The sizes of google/gemma-3-1b-pt.
    "gemma3 1B": {
        "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152,
        "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
    },
}  # fmt: skip
_TINY: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One configuration: a model, sequences of a micro-batch, tokens of a sequence, and keys.

    Attributes:
        evaluated: Whether the loss on a validation set is measured after the second step.
        new: Whether the planner was last mended before anybody had measured it.
    """

    model: str
    batch: int
    seq_len: int
    keys: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    steps: int = 3
    evaluated: bool = False
    new: bool = False

    @property
    def what(self) -> str:
        """The configuration in words."""
        keys = ", ".join(f"{key}: {_short(value)}" for key, value in self.keys.items())
        several = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        evaluated = ", evaluated" if self.evaluated else ""
        size = f"{self.model}, {self.batch} x {self.seq_len}"
        return f"{size}{several}{evaluated}{', ' if keys else ''}{keys}"

    def spec(self, world_size: int, text: Path, *, tiny: bool) -> TrainSpec:
        """Return it as the trainer reads it; ``tiny`` makes all of it small."""
        config = MODELS[self.model]
        if tiny:
            config = {**config, **_TINY}
        batch, length = (1, 32) if tiny else (self.batch, self.seq_len)
        data = {"text_files": [str(text)], "seq_len": length, **self.keys.get("data", {})}
        evaluation = {"text_files": [str(text)], "batches": 2} if self.evaluated else None
        return TrainSpec.model_validate(
            {
                "model": {"config": config},
                "eval": evaluation,
                "steps": 100,
                "micro_batch": batch,
                "global_batch": batch * self.micro_batches * world_size,
                "deterministic": False,
                **self.keys,
                "data": data,
            }
        )


def predicted(case: Case, world_size: int, *, gpu: str, tiny: bool) -> dict[str, Any]:
    """Return what the planner says of a configuration, in bytes and seconds."""
    spec = case.spec(world_size, Path("text"), tiny=tiny)
    shape = shape_of(spec.model.config or {})
    work, kind = workload(spec, shape, world_size=world_size), find(gpu)
    said = memory(shape, work, kind)
    return {
        "parameters": shape.parameters,
        "allocated": said.allocated,
        "reserved": said.reserved,
        "context": said.context,
        "moment": said.moment,
        "step_s": _step_s(shape, work, kind, world_size) if kind else None,
    }


def _step_s(shape: ModelShape, work: Workload, gpu: Gpu, world_size: int) -> float:
    """Return the time of a step on one node, with a thread a rank, as the script starts them."""
    net = network(gpu, FabricProfile(kind="none"), per_node=world_size)
    return speed(shape, work, gpu, net, per_node=world_size, threads=1).step_s


def _short(value: object) -> str:
    return str(value).replace("'", "").replace("{", "").replace("}", "")


_AC = "activation_checkpointing"
_HSDP = {"replicate": 2, "shard": 1}

_LORA = {"lora": {"rank": 16}}
# The lower half of the 1.1 B model, and what it reads; and every second block.
_LOWER = {"freeze": ["model.embed_tokens.*", "model.layers.[0-7].*"]}
_EVEN = {"freeze": ["model.layers.*[02468].*"]}

# Those that the planner has not met yet.
_NEW: dict[str, Case] = {
    "lora": Case("1.1B", 4, 4096, _LORA),
    "8b-lora": Case("8B", 1, 4096, {**_LORA, _AC: "selective"}),
    "freeze-lower": Case("1.1B", 4, 4096, _LOWER),
    "freeze-even": Case("1.1B", 4, 4096, _EVEN),
    "documents": Case("1.1B", 4, 4096, {"data": {"packing": "documents"}}),
    "mistral": Case("mistral 1.3B", 2, 4096),
    "gemma3": Case("gemma3 1B", 2, 2048),
    "evaluated": Case("1.1B", 4, 4096, {_AC: "full"}, evaluated=True),
    "small-compile": Case("0.35B", 8, 2048, {"compile": True}),
    "small-rowwise": Case("0.35B", 8, 2048, {"compile": True, "fp8": "rowwise"}),
    "qwen3-compile": Case("qwen3 0.6B", 4, 2048, {"compile": True}),
    "full-compile": Case("1.1B", 4, 4096, {"compile": True, _AC: "full"}),
    "accumulate-compile": Case("1.1B", 2, 4096, {"compile": True}, micro_batches=4),
    "tied-3b-compile": Case("3.2B", 2, 4096, {"compile": True, _AC: "selective"}),
    "tied-3b-tensorwise": Case("3.2B", 2, 4096, {"compile": True, "fp8": "tensorwise"}),
    "8b-lora-compile": Case("8B", 1, 4096, {**_LORA, "compile": True}),
}
_MET: dict[str, Case] = {
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
    "compile": Case("1.1B", 4, 4096, {"compile": True}),
    "fp8": Case("1.1B", 4, 4096, {"compile": True, "fp8": "rowwise"}),
    "offload": Case("0.35B", 4, 2048, {"cpu_offload": True}),
}
# Last: their communicators stay, and would count as CUDA's own memory of what comes after.
_LAST: dict[str, Case] = {
    "hsdp": Case("1.1B", 4, 4096, {"mesh": _HSDP}),
    "hsdp-compile": Case("1.1B", 4, 4096, {"mesh": _HSDP, "compile": True}),
}
CASES: dict[str, Case] = {**_NEW, **_MET, **_LAST}
NEW = tuple(name for name, case in CASES.items() if case.new)
