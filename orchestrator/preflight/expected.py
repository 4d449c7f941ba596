"""What a node is expected to show, as `preflight.json` in the run directory says it. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from orchestrator.bandwidth.record import RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What to check, and what a fit node shows.

    Attributes:
        checks: Names of the checks that are on.
        workers: Workers that the node will run.
        gpus: GPUs that they need; None where the site is not known to have any.
        gpu_model: As the site profile calls it, such as "H100-80GB-SXM".
        mig: Whether the site hands out slices of GPUs.
        fabric: Kind of the network between nodes; "none" for a job of one node.
        hcas: Network adapters of that kind on each node; None where the profile does not say.
        hca_gbps: What each of them runs at, in Gbit/s.
        gpu_memory_used_gib: What may be in use on a free GPU.
        gpu_temperature_c: What a GPU without work stays below.
        uncorrected_ecc: Uncorrected memory errors since the driver was loaded that are put up with.
        busbw_gbs: Bus bandwidth of a large all-reduce that the site profile promises, in GB/s; None
            where it says nothing.
        bandwidth_ratio: A node that reaches less than so much of what the others do is slow.
        timeout_s: For all checks together, but for the all-reduce and the bandwidth, which have
            their own.
    """

    checks: tuple[str, ...]
    workers: int = 1
    gpus: int | None = None
    gpu_model: str | None = None
    mig: bool = False
    fabric: str = "none"
    hcas: int | None = None
    hca_gbps: int | None = None
    gpu_memory_used_gib: float = 2.0
    gpu_temperature_c: float = 90.0
    uncorrected_ecc: int = 0
    timeout_s: int = 60
    all_reduce_timeout_s: int = 120
    busbw_gbs: float | None = None
    bandwidth_ratio: float = RATIO
    bandwidth_timeout_s: int = 120

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Expected":
        """Return what `to_json` gave ``data`` for; keys of other versions are passed over.

        Raises:
            TypeError, KeyError: It is something else.
        """
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in data.items() if key in known}
        return cls(**{**given, "checks": tuple(data["checks"])})

    def asks(self, *checks: str) -> bool:
        """Return whether one of these checks is on."""
        return any(check in self.checks for check in checks)
