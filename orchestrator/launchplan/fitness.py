"""What a fit node of a site shows to a job: the expectations of the pre-flight. Pure."""

import re

from orchestrator.preflight.expected import Expected
from orchestrator.profile import FabricProfile, GpuProfile, SiteProfile
from orchestrator.spec.job import JobSpec

_SLICE = re.compile(r"mig|\dg\.\d+gb", re.IGNORECASE)


def expected(spec: JobSpec, profile: SiteProfile, *, workers: int) -> Expected:
    """Return what each node of the job has to show; ``workers`` is their number on a node."""
    asked = spec.preflight
    gpu = profile.gpu
    # A single node needs no network between nodes.
    fabric = profile.fabric if spec.nodes > 1 else FabricProfile(kind="none")
    return Expected(
        checks=asked.checks,
        workers=workers,
        gpus=workers if gpu else None,
        gpu_model=gpu.model if gpu else None,
        mig=gpu is not None and _is_sliced(gpu),
        fabric=fabric.kind,
        hcas=fabric.hcas_per_node,
        hca_gbps=_gbps(fabric.rate),
        gpu_memory_used_gib=asked.gpu_memory_used_gib,
        gpu_temperature_c=asked.gpu_temperature_c,
        uncorrected_ecc=asked.uncorrected_ecc,
        busbw_gbs=fabric.busbw_gbs,
        bandwidth_ratio=asked.bandwidth_ratio,
        bandwidth_timeout_s=asked.bandwidth_timeout_s,
        timeout_s=asked.timeout_s,
        all_reduce_timeout_s=asked.all_reduce_timeout_s,
    )


def _is_sliced(gpu: GpuProfile) -> bool:
    return bool(_SLICE.search(f"{gpu.model} {gpu.type or ''}"))


def _gbps(rate: str | None) -> int | None:
    """Return the Gbit/s of a port whose rate is given as NDR400 or the like.

    A plain number may be that of all ports of a node together ("3200Gb/s"), so it is none.
    """
    found = re.search(r"\b[A-Z]DR(\d+)\b", rate or "")
    return int(found[1]) if found else None
