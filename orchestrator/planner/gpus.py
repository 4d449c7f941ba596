"""What each kind of GPU has. The one table, with its sources. Pure.

Rates are those of dense matrices: NVIDIA's sheets print twice as much, for sparse ones.

Sources: NVIDIA A100 datasheet (June 2021), H100 datasheet (2023) and "H100 Tensor Core GPU
Architecture" white paper, H200 datasheet (2024), GH200 Grace Hopper datasheet (2024). Memory is
what CUDA gives a process, as PyTorch's errors state it ("has a total capacity of"), which is less
than what is sold.
"""

import re
from dataclasses import dataclass, replace

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        memory_bytes: What CUDA gives all processes together.
        bf16_flops: Floating point operations a second in bf16, dense.
        fp8_flops: The same in FP8; None where it has none.
        hbm_bytes_s: Bandwidth of its memory.
        nvlink_bytes_s: Bandwidth to the other GPUs of its node, one way.
        processors: Streaming multiprocessors.
    """

    name: str
    memory_bytes: float
    bf16_flops: float
    fp8_flops: float | None
    hbm_bytes_s: float
    nvlink_bytes_s: float
    processors: int


def _gpu(
    name: str, gib: float, bf16: float, fp8: float | None, hbm: float, link: float, sms: int
) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=gib * GIB,
        bf16_flops=bf16 * 1e12,
        fp8_flops=None if fp8 is None else fp8 * 1e12,
        hbm_bytes_s=hbm * 1e9,
        nvlink_bytes_s=link * 1e9,
        processors=sms,
    )


GPUS = (
    #     name          GiB    bf16   FP8     HBM   NVLink  SMs
    _gpu("A100-40", 39.4, 312.0, None, 1555.0, 300.0, 108),
    _gpu("A100-80", 79.2, 312.0, None, 2039.0, 300.0, 108),
    _gpu("H100-80", 79.1, 989.4, 1978.9, 3350.0, 450.0, 132),
    _gpu("H100-PCIE-80", 79.1, 756.0, 1513.0, 2000.0, 64.0, 114),
    _gpu("GH200-96", 94.5, 989.4, 1978.9, 4000.0, 450.0, 132),
    _gpu("GH200-144", 139.8, 989.4, 1978.9, 4900.0, 450.0, 132),
    _gpu("H200-141", 139.8, 989.4, 1978.9, 4800.0, 450.0, 132),
)
NAMES = tuple(gpu.name for gpu in GPUS)


def find(model: str, memory_gib: float | None = None) -> Gpu | None:
    """Return the GPU that a site profile or a user calls ``model``; None where it is not known.

    A size that is not in the table, as some sites' own parts have, replaces that of its kind. An
    A100 without a size is taken for the smaller one.

    >>> [find(name).name for name in ("H100-80GB-SXM", "A100", "H200", "gh200 480GB")]
    ['H100-80', 'A100-40', 'H200-141', 'GH200-96']
    """
    word = model.upper().replace("_", "-")
    family = next((one for one in ("GH200", "H200", "H100", "A100") if one in word), None)
    kinds = [gpu for gpu in GPUS if family and gpu.name.startswith(family)]
    kinds = [gpu for gpu in kinds if ("PCIE" in gpu.name) == ("PCIE" in word)]
    wanted = memory_gib or _size(word)
    if not kinds or wanted is None:
        return next(iter(kinds), None)
    near = min(kinds, key=lambda gpu: abs(gpu.memory_bytes / GIB - wanted))
    if abs(near.memory_bytes / GIB - wanted) <= wanted / 12:
        return near
    name = f"{family}-{wanted:g}"
    return replace(near, name=name, memory_bytes=_USABLE * wanted * GIB)


# Of a GPU's memory, what CUDA gives: 39.4 of 40, 79.2 of 80.
_USABLE = 0.985


def _size(word: str) -> float | None:
    """Return the memory that stands in a name; 480 in GH200's is that of its processor."""
    sizes = [float(size) for size in re.findall(r"(?<![0-9A-Z])(\d{2,3})(?![0-9])", word)]
    return next((size for size in sizes if size <= 200), None)
