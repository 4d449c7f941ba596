"""How much of a GPU's peak training reaches, from measurements. The one table. Pure.

A share is the model's operations, as `ModelShape.flops_per_token` counts them (recomputing not
counted), divided by time and by the dense bf16 peak: the MFU of the trainer's metrics. Where a
source counts otherwise its tokens per second were taken and counted again. torchtitan's runs
compute some activations again, so a run that does not may be somewhat faster than is said here.
"""

from dataclasses import dataclass
from typing import Literal

from orchestrator.planner.gpus import Gpu
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.workload import Workload

Mode = Literal["eager", "compiled", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of the bf16 peak.

    Attributes:
        share: The share, from 0 to about 1.
        within: How far off it may be, as a part of it.
        source: Where it comes from.
    """

    share: float
    within: float
    source: str


_TITAN_H100 = "torchtitan, Llama 3 8B on 8 H100 (500 W), December 2024"
_OWN = "measured with this trainer, Llama 1.1 B on 2 H200; see tests/gpu/RESULTS.md"

_RATES: dict[tuple[str, Mode], Rate] = {
    ("A100", "eager"): Rate(
        share=0.54, within=0.15, source="torchtitan, Llama 3 8B on 64 A100, 2024"
    ),
    ("A100", "compiled"): Rate(
        share=0.58, within=0.2, source="IBM and PyTorch, FSDP with compile, 7B on A100"
    ),
    ("H100", "eager"): Rate(share=0.34, within=0.2, source=f"{_TITAN_H100}: 5,762 tokens/s/GPU"),
    ("H100", "compiled"): Rate(share=0.39, within=0.2, source=f"{_TITAN_H100}: 6,667 tokens/s/GPU"),
    ("H100", "fp8"): Rate(share=0.50, within=0.2, source=f"{_TITAN_H100}: 8,532 tokens/s/GPU"),
    ("H200", "eager"): Rate(share=0.42, within=0.15, source=_OWN),
    ("H200", "compiled"): Rate(
        share=0.50, within=0.25, source="no measurement; H200's FP8 rate, and H100's gain by FP8"
    ),
    ("H200", "fp8"): Rate(
        share=0.64, within=0.2, source="torchtitan, Llama 3 8B on 4 nodes of H200, June 2025"
    ),
}
# GH200 has H200's processors; nobody has measured it here.
_LIKE = {"GH200": "H200"}


def rate(shape: ModelShape, work: Workload, gpu: Gpu) -> Rate:
    """Return what share of its peak ``gpu`` is likely to reach.

    Small models reach less: their matrices do not fill the GPU, and starting kernels takes longer
    than running them.
    """
    family = gpu.name.partition("-")[0]
    mode: Mode = "fp8" if work.fp8 != "off" else "compiled" if work.compiled else "eager"
    known = _RATES.get((_LIKE.get(family, family), mode)) or _RATES[("H100", mode)]
    exact = (family, mode) in _RATES
    small = _of_size(shape.parameters)
    slow = 1 / 16 if work.width == 4 else 1.0  # fp32 products do without tensor cores
    usual = exact and small == slow == 1.0 and not shape.experts
    # A mixture of experts has been measured by nobody in these sources.
    return Rate(
        share=known.share * small * slow * (0.5 if shape.experts else 1.0),
        within=known.within if usual else max(known.within, 0.4),
        source=known.source,
    )


def _of_size(parameters: int) -> float:
    """Return the part of the rate of a large model that one of this size reaches."""
    if parameters >= 1e9:
        return 1.0
    # Llama 0.79 B on 2 H200, sequence 2048: 29 % where 1.1 B reached 42 %.
    return 0.75 if parameters >= 0.5e9 else 0.5
