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

Mode = Literal["eager", "compiled", "tensorwise", "rowwise"]


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
_OWN = "measured with this trainer on 2 H200, Llama"
_SEE = "see tests/gpu/RESULTS.md"

_RATES: dict[tuple[str, Mode], Rate] = {
    ("A100", "eager"): Rate(
        share=0.54, within=0.15, source="torchtitan, Llama 3 8B on 64 A100, 2024"
    ),
    ("A100", "compiled"): Rate(
        share=0.58, within=0.2, source="IBM and PyTorch, FSDP with compile, 7B on A100"
    ),
    ("H100", "eager"): Rate(share=0.34, within=0.2, source=f"{_TITAN_H100}: 5,762 tokens/s/GPU"),
    ("H100", "compiled"): Rate(share=0.39, within=0.2, source=f"{_TITAN_H100}: 6,667 tokens/s/GPU"),
    ("H100", "tensorwise"): Rate(
        share=0.50, within=0.2, source=f"{_TITAN_H100}: 8,532 tokens/s/GPU"
    ),
    ("H100", "rowwise"): Rate(
        share=0.40, within=0.3, source="no measurement; H100's tensor-wise rate, and H200's loss"
    ),
    ("H200", "eager"): Rate(share=0.44, within=0.2, source=f"{_OWN} 1.1 B; {_SEE}"),
    ("H200", "compiled"): Rate(
        share=0.56, within=0.15,
        source=f"{_OWN} 1.1 B and 8 B: 69,758 and 9,294 tokens/s/GPU; {_SEE}",
    ),
    ("H200", "tensorwise"): Rate(
        share=0.70, within=0.15,
        source=f"{_OWN} 1.1 B and 8 B: 84,851 and 11,997 tokens/s/GPU; {_SEE}",
    ),
    ("H200", "rowwise"): Rate(
        share=0.55, within=0.15, source=f"{_OWN} 1.1 B: 71,409 tokens/s/GPU; {_SEE}"
    ),
}  # fmt: skip
# fp32 products do without tensor cores: half of the fp32 peak, which is a fifteenth of that of bf16
# (Llama 0.35 B on H200; the size of its matrices made no difference there).
_FP32 = 0.034
# GH200 has H200's processors; nobody has measured it here.
_LIKE = {"GH200": "H200"}


def rate(shape: ModelShape, work: Workload, gpu: Gpu) -> Rate:
    """Return what share of its peak ``gpu`` is likely to reach.

    Small models reach less: their matrices do not fill the GPU, and starting kernels takes longer
    than running them. The best that products of matrices reached on H200 was 771 TFLOP/s in bf16,
    78 % of the peak, so no share of bf16 can be more.
    """
    family = gpu.name.partition("-")[0]
    mode = _mode(work)
    known = _RATES.get((_LIKE.get(family, family), mode)) or _RATES[("H100", mode)]
    exact = (family, mode) in _RATES
    small = _of_size(shape)
    usual = exact and small == 1.0 and work.width < 4 and not shape.experts
    # A mixture of experts has been measured by nobody in these sources.
    return Rate(
        share=(_FP32 if work.width == 4 else known.share * small) * (0.5 if shape.experts else 1.0),
        within=known.within if usual else max(known.within, 0.4),
        source=known.source,
    )


def _mode(work: Workload) -> Mode:
    if work.fp8 != "off":
        return "rowwise" if work.fp8 == "rowwise" else "tensorwise"
    return "compiled" if work.compiled else "eager"


def _of_size(shape: ModelShape) -> float:
    """Return the part of the rate of a large model that one of this size reaches.

    Measured on 2 H200, sequence 2048, eager, where 1.1 B reached 44 %: Llama 0.79 B 29 %; with a
    width of 1024 Llama 0.35 B 24 %, and Qwen 3 0.6 B, which norms queries and keys, 16 %.
    """
    if shape.parameters >= 1e9:
        return 1.0
    if shape.hidden > 1024:
        return 0.67
    return 0.37 if shape.qk_norm else 0.54
