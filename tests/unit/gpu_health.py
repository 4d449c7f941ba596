"""GPUs as nvidia-smi shows them, and what a check of their node is told to expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings
from orchestrator.preflight.smi import HEALTH, IDENTITY, OLDER, Row, read_rows
from orchestrator.spec.preflight import CHECKS

# An idle H100 that is well.
WELL = {
    "uuid": "GPU-{}",
    "name": "NVIDIA H100 80GB HBM3",
    "memory.used": "4",
    "temperature.gpu": "31",
    "pstate": "P0",
    "mig.mode.current": "Disabled",
    "clocks.sm": "345",
    "clocks.max.sm": "1980",
    "clocks_event_reasons.active": "0x0000000000000001",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "retired_pages.pending": "[N/A]",
    "gpu_recovery_action": "None",
    "reset_status.reset_required": "[N/A]",
}
FABRIC: dict[str, Any] = {"fabric": "infiniband", "hcas": 2, "hca_gbps": 400}
DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"


def said(name: str) -> str:
    """Return what a real nvidia-smi printed."""
    return (DATA / f"{name}.txt").read_text()


def expected(**changes: Any) -> Expected:
    """Everything on, for two H100."""
    usual: dict[str, Any] = {"checks": CHECKS, "gpus": 2, "gpu_model": "H100-80GB-SXM"}
    return Expected(**{**usual, **changes})


def gpu(index: int = 0, **changes: str) -> Row:
    """A GPU as nvidia-smi shows it; dots in names of fields are written as two underscores."""
    values = {"index": str(index), **WELL, "uuid": f"GPU-{index}"}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    fields = (*IDENTITY, *HEALTH, OLDER["gpu_recovery_action"])
    [row] = read_rows(", ".join(values[field] for field in fields), fields)
    return row


def whats(found: Findings) -> list[str]:
    """Return the problems in words."""
    return [problem.what for problem in found.problems]
