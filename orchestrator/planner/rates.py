"""How much of a GPU's peak the blocks of a model reach, from measurements. The one table. Pure.

A share is the model's operations, as `ModelShape.flops_per_token` counts them (recomputing not
counted), divided by the time of forward and backward alone and by the dense bf16 peak. It is more
than the MFU of the trainer's metrics, in whose time the optimizer and what FSDP moves are, too:
`speed` adds those. A source states MFU or tokens per second; what stands here gives the same step
with all that is added. torchtitan's runs compute some activations again, so a run that does not may
be somewhat faster than is said here.
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

# At a width of 4096.
_RATES: dict[tuple[str, Mode], Rate] = {
    ("A100", "eager"): Rate(
        share=0.58, within=0.15, source="torchtitan, Llama 3 8B on 64 A100, 2024"
    ),
    ("A100", "compiled"): Rate(
        share=0.62, within=0.2, source="IBM and PyTorch, FSDP with compile, 7B on A100"
    ),
    ("H100", "eager"): Rate(share=0.40, within=0.2, source=f"{_TITAN_H100}: 5,762 tokens/s/GPU"),
    ("H100", "compiled"): Rate(share=0.46, within=0.2, source=f"{_TITAN_H100}: 6,667 tokens/s/GPU"),
    ("H100", "tensorwise"): Rate(
        share=0.62, within=0.2, source=f"{_TITAN_H100}: 8,532 tokens/s/GPU"
    ),
    ("H100", "rowwise"): Rate(
        share=0.48, within=0.3, source="no measurement; H100's tensor-wise rate, and H200's loss"
    ),
    ("H200", "eager"): Rate(share=0.57, within=0.2, source=f"{_OWN} 1.1 B to 8 B; {_SEE}"),
    ("H200", "compiled"): Rate(
        share=0.71, within=0.15,
        source=f"{_OWN} 1.1 B and 8 B: 69,758 and 9,294 tokens/s/GPU; {_SEE}",
    ),
    ("H200", "tensorwise"): Rate(
        share=0.98, within=0.15,
        source=f"{_OWN} 1.1 B and 8 B: 84,851 and 11,997 tokens/s/GPU; {_SEE}",
    ),
    ("H200", "rowwise"): Rate(
        share=0.73, within=0.15, source=f"{_OWN} 1.1 B: 71,409 tokens/s/GPU; {_SEE}"
    ),
}  # fmt: skip
# fp32 products do without tensor cores: half of the fp32 peak, which is a fifteenth of that of bf16
# (Llama 0.35 B on H200; the size of its matrices made no difference there).
_FP32 = 0.034
# GH200 has H200's processors; nobody has measured it here.
_LIKE = {"GH200": "H200"}
# Products of matrices reached 78 % of the bf16 peak at best on H200 (771 TFLOP/s): so no more.
_MOST = 0.78


def rate(shape: ModelShape, work: Workload, gpu: Gpu) -> Rate:
    """Return what share of its peak ``gpu`` is likely to reach in forward and backward."""
    family = gpu.name.partition("-")[0]
    mode = _mode(work)
    known = _RATES.get((_LIKE.get(family, family), mode)) or _RATES[("H100", mode)]
    exact = (family, mode) in _RATES
    usual = exact and shape.hidden >= 2048 and work.width < 4
    usual = usual and not shape.experts and not work.masked
    most = _MOST * (1 if work.fp8 == "off" else 2)
    share = _FP32 if work.width == 4 else min(_of_width(known.share, shape, gpu), most)
    # A mixture of experts has been measured by nobody in these sources.
    return Rate(
        share=share * (0.5 if shape.experts else 1.0),
        within=known.within if usual else max(known.within, 0.4),
        source=known.source,
    )


# What norms, rotation, activation and residuals take besides, in the time of products at the peak,
# times the width of the model: their bytes grow with it, and operations with its square. Of 1.1 B
# and 8 B on H200, compiled: 1.69 and 1.40 times the time at the peak, recomputing taken off. Where
# memory is slower beside the products it is more.
_OF_BYTES = 1190.0
_H200_RATIO = 989.4e12 / 4800e9


def _of_width(share: float, shape: ModelShape, gpu: Gpu) -> float:
    slower = gpu.bf16_flops / gpu.hbm_bytes_s / _H200_RATIO
    return 1 / (1 / share + _OF_BYTES * slower * (1 / shape.hidden - 1 / 4096))


def _mode(work: Workload) -> Mode:
    if work.fp8 != "off":
        return "rowwise" if work.fp8 == "rowwise" else "tensorwise"
    return "compiled" if work.compiled else "eager"
