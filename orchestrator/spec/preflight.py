"""The `preflight:` part of a job file: what each node is asked before training starts on it."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from orchestrator.bandwidth.record import RATIO
from orchestrator.keys.counts import WholeNumber
from orchestrator.keys.fields import Strict

Seconds = Annotated[int, Field(ge=1, le=3600, strict=True)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PreflightSpec(Strict):
    """Which checks are on, and where a node begins to be unfit.

    `true` turns on all that cost seconds, `false` none; keys turn single ones on or off. Without
    the key only those run that cannot be wrong about a good node (`CERTAIN`).
    """

    gpus: bool = True
    memory: bool = True
    ecc: bool = True
    clocks: bool = True
    nvlink: bool = True
    hcas: bool = True
    storage: bool = True
    # Imports torch on every GPU: 5 s on two H200, more from a shared disk.
    all_reduce: bool = False
    # Takes all nodes together, and up to two minutes.
    bandwidth: bool = False
    gpu_memory_used_gib: Amount = 2.0
    gpu_temperature_c: Amount = 90.0
    uncorrected_ecc: WholeNumber = 0
    timeout_s: Seconds = 60
    all_reduce_timeout_s: Seconds = 120
    bandwidth_ratio: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = RATIO
    bandwidth_timeout_s: Seconds = 120

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, data: Any) -> Any:
        if data is True:
            return {}
        if data is False:
            return dict.fromkeys(CHECKS, False)
        if isinstance(data, dict | cls):
            return data
        raise ValueError("write true, false, or the checks to change, such as {all_reduce: true}")

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks that are on."""
        return tuple(name for name in CHECKS if getattr(self, name))


CHECKS = (
    *("gpus", "memory", "ecc", "clocks", "nvlink", "hcas", "storage"),
    *("all_reduce", "bandwidth"),
)
# GPUs that are missing or lost, and a checkpoint directory that cannot be written.
CERTAIN = PreflightSpec(memory=False, ecc=False, clocks=False, nvlink=False, hcas=False)

__all__ = ["CERTAIN", "CHECKS", "PreflightSpec"]
