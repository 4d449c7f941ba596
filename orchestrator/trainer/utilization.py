"""How much of a GPU the training uses: floating-point operations of the model over its peak.

Counted as PaLM's report (appendix B) and torchtitan do: six operations for each parameter and
token, and 12 * layers * heads * head width * length for attention, whole, though a causal kernel
does about half. What activation checkpointing computes again is not counted. Input embeddings are
looked up, not multiplied, and do not count, unless they are the head as well; a frozen parameter
counts four, having no gradient; of experts count those that a token goes through.

Peaks: dense bf16 rates of NVIDIA's data sheets, without sparsity, also where FP8 is used.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.world import World

# Operations a second. The first name that is part of the GPU's counts.
_PEAKS = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200 NVL", 835e12),
    ("H200", 989.4e12),
    ("GH200", 989.4e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989.4e12),
    ("H800", 989.4e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("L40S", 362e12),
)


def peak_flops(gpu: str) -> float | None:
    """Return how many operations a second the GPU of that name can do; None if unknown.

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA GB10")
    (989400000000000.0, None)
    """
    return next((rate for name, rate in _PEAKS if name in gpu), None)


def flops_per_token(model: PreTrainedModel, *, seq_len: int) -> float:
    """Return the operations, forwards and backwards, that a token of a sequence costs."""
    config = model.config.get_text_config()
    embeddings = _embeddings(model)
    share = _share_of_experts(config)
    total = 0.0
    for name, parameter in model.named_parameters():  # a tied one comes once
        if id(parameter) in embeddings:
            continue
        active = share if ".experts." in name else 1.0
        total += (6 if parameter.requires_grad else 4) * parameter.numel() * active
    return total + sum(_attention(config, seq_len))


def _embeddings(model: PreTrainedModel) -> set[int]:
    """Return the tables that are only looked up."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = model.get_output_embeddings()
    return tables - {id(getattr(head, "weight", None))}


def _share_of_experts(config: Any) -> float:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((n for name in names if (n := getattr(config, name, None))), 1)
    return (getattr(config, "num_experts_per_tok", None) or experts) / experts


def _attention(config: Any, seq_len: int) -> list[float]:
    """Return each layer's operations for a token; none where nothing attends (Mamba)."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return []
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    window = getattr(config, "sliding_window", None) or seq_len
    return [
        12.0 * heads * width * (min(window, seq_len) if "sliding" in kind else seq_len)
        for kind in kinds
    ]


@dataclass(frozen=True, slots=True)
class Meter:
    """Reads what this rank's GPU did.

    Attributes:
        per_token: Operations of a token.
        peak: Operations a second that the GPU can do; None: not known, or no GPU.
        world: This rank's place.
    """

    per_token: float
    peak: float | None
    world: World

    @classmethod
    def of(cls, model: PreTrainedModel, spec: TrainSpec, world: World) -> Self:
        """Return a meter for the training of ``model``."""
        on_gpu = world.device.type == "cuda"
        peak = peak_flops(torch.cuda.get_device_name(world.device)) if on_gpu else None
        return cls(flops_per_token(model, seq_len=spec.data.seq_len), peak, world)

    def read(self, tokens_per_s: float) -> dict[str, float | None]:
        """Return the keys of a line of metrics.jsonl, from the tokens that all ranks did.

        Memory is what PyTorch's allocator gave out, and what it took from the GPU, at most.
        """
        each = tokens_per_s / self.world.size
        device, on_gpu = self.world.device, self.world.device.type == "cuda"
        return {
            "tokens_per_s_per_gpu": each,
            "mfu": None if self.peak is None else each * self.per_token / self.peak,
            "peak_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else None,
            "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30 if on_gpu else None,
        }
