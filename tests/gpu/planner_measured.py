"""What was measured once on 2 H200, and what the planner says of it today.

    python -m tests.gpu.planner_measured

prints the table that stands in RESULTS.md, without a GPU and without torch. Measured with torch
2.11.0+cu130, NCCL 2.28.9, NVLink multicast off, by `python -m tests.gpu.planner` on 2026-11-30;
what `python -m tests.gpu.speed` gave the same day stands in FROM_SPEED.
"""

from collections.abc import Iterator
from typing import Any

from tests.gpu.planner_cases import CASES, Case, predicted
from tests.gpu.planner_table import GIB, report

# Tensors, allocator, CUDA with NCCL in GiB; seconds of a step.
MEASURED: dict[str, tuple[float, float, float, float]] = {
    "small": (22.42, 23.32, 1.51, 0.175),
    "small-whole-loss": (24.64, 26.64, 1.51, 0.192),
    "small-fp32": (45.03, 46.32, 1.51, 0.613),
    "qwen3": (21.75, 23.36, 1.51, 0.254),
    "base": (37.09, 39.75, 1.51, 0.296),
    "deterministic": (37.09, 39.75, 1.51, 0.333),
    "selective": (18.84, 21.25, 1.51, 0.352),
    "full": (11.58, 14.09, 1.51, 0.370),
    "long": (22.79, 25.99, 1.51, 0.178),
    "no-reshard": (38.91, 41.43, 1.51, 0.289),
    "accumulate": (25.09, 26.34, 1.51, 0.349),
    "accumulate-unsharded": (26.91, 30.09, 1.51, 0.386),
    "tied-3b": (52.09, 59.38, 1.51, 0.465),
    "tied-3b-selective": (42.72, 50.08, 1.51, 0.983),
    "8b": (62.83, 80.13, 1.51, 0.370),
    "8b-full": (62.97, 71.94, 1.51, 1.148),
    "8b-selective": (62.83, 77.60, 1.51, 0.694),
    "compile": (26.77, 29.18, 1.51, 0.225),
    "fp8": (20.78, 23.25, 1.51, 0.258),
    "offload": (11.44, 12.33, 1.52, 0.765),
    "hsdp": (43.14, 47.99, 1.90, 0.307),
    # Measured after the planner had its present form; nothing of it was mended on these.
    "lora": (30.67, 31.29, 1.51, 0.286),
    "8b-lora": (34.27, 36.00, 1.51, 0.941),
    "freeze-lower": (21.65, 23.28, 1.51, 0.205),
    "freeze-even": (31.28, 33.01, 1.51, 0.272),
    "documents": (40.60, 43.28, 1.51, 0.374),
    "mistral": (30.16, 33.77, 1.51, 0.285),
    "gemma3": (22.41, 25.24, 1.51, 0.386),
    "evaluated": (11.58, 14.09, 1.51, 0.374),
    "small-compile": (14.97, 15.78, 1.51, 0.192),
    "small-rowwise": (11.41, 12.50, 1.51, 0.290),
    "qwen3-compile": (14.90, 16.51, 1.51, 0.273),
    "full-compile": (10.55, 12.20, 1.51, 0.279),
    "accumulate-compile": (19.14, 19.78, 1.51, 0.573),
    "tied-3b-compile": (30.25, 37.39, 1.51, 0.406),
    "tied-3b-tensorwise": (35.50, 42.86, 1.52, 0.365),
    "8b-lora-compile": (36.31, 38.61, 1.52, 0.452),
    "hsdp-compile": (32.82, 37.37, 1.90, 0.243),
}

_AC = "activation_checkpointing"
_MIDDLE = "1.1B, 32 heads"
# Tensors and allocator in GiB, seconds.
FROM_SPEED: dict[str, tuple[Case, float, float, float]] = {
    "speed": (Case(_MIDDLE, 8, 4096, {"compile": True}), 45.64, 49.29, 0.470),
    "speed-tensorwise": (
        Case(_MIDDLE, 8, 4096, {"compile": True, "fp8": "tensorwise"}), 33.96, 37.69, 0.386,
    ),
    "speed-rowwise": (
        Case(_MIDDLE, 8, 4096, {"compile": True, "fp8": "rowwise"}), 34.36, 38.68, 0.459,
    ),
    "speed-8b": (
        Case("8B", 2, 4096, {"compile": True, _AC: "selective"}), 65.63, 85.78, 0.881,
    ),
    "speed-8b-tensorwise": (
        Case("8B", 2, 4096, {"compile": True, "fp8": "tensorwise", _AC: "selective"}),
        65.63, 85.93, 0.683,
    ),
}  # fmt: skip
_RANKS, _GPU = 2, "NVIDIA H200"
_ABOUT = {
    "GPUs": f"{_RANKS} x {_GPU}, CUDA 13.0, NCCL 2.28.9",
    "torch": "2.11.0",
    "transformers": "5.17.0",
    "torchao": "0.17.0",
}


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each configuration: measured once, predicted now."""
    for name, (allocated, reserved, context, step_s) in MEASURED.items():
        sizes = {"allocated": allocated, "reserved": reserved, "context": context}
        yield _row(name, CASES[name], sizes, step_s)
    for name, (case, allocated, reserved, step_s) in FROM_SPEED.items():
        yield _row(name, case, {"allocated": allocated, "reserved": reserved}, step_s)


def _row(name: str, case: Case, gib: dict[str, float], step_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "trouble": "",
        "new": case.new,
        "what": case.what,
        "predicted": predicted(case, _RANKS, gpu=_GPU, tiny=False),
        "measured": {**{kind: size * GIB for kind, size in gib.items()}, "step_s": step_s},
    }


if __name__ == "__main__":
    print(report(_ABOUT)(list(rows())))
