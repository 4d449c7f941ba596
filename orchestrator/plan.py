"""From job and site to a launch plan: every value settled, nothing left to guess. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from orchestrator import promise
from orchestrator.clouds import Cloud
from orchestrator.errors import SpecError
from orchestrator.fabric.promise import Promise
from orchestrator.layout import RunLayout
from orchestrator.limits import Limits
from orchestrator.policy import Policy
from orchestrator.profile import GpuProfile, PartitionProfile, SiteProfile
from orchestrator.spec.job import JobSpec
from orchestrator.spec.train import fits

# Set for every attempt. The NCCL log in the attempt's folder is the proof of what network was
# used. torchrun would export ASYNC_ERROR_HANDLING=1, which blocks flight-recorder dumps.
_DEFAULT_ENV = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What the scripts are rendered from.

    Attributes:
        job_name: Unique to the run directory: jobs of one run are found by it, and
            --dependency=singleton keeps a second one waiting.
        directives: Options of sbatch as (name, value), in the order of the script.
        env: Exported on every node, in order; the job's own values come last and win.
        python_path: Folders of the run directory that modules come from before all others.
        program: What torchrun starts: options and arguments after its own.
        policy: How the run is brought back.
        cloud: Whose metadata service tells of reclaims that the scheduler does not know of.
        stop_on_rebalance: Whether a recommendation to move (AWS) is a notice too.
        notice_lead_s: How many seconds before the end the job wants to know.
        notice_s: How long before the end a notice comes at least: the grace time of the partition
            where it is known, or the lead that the job asks for.
        preflight: Whether each node is checked before torchrun (see `orchestrator.fitness`).
        hang: How long a rank may make no progress.
        fabric: What the site promises of the network; None in runs of older versions.
    """

    run: str
    run_dir: str
    job_name: str
    site: str
    scheduler: Literal["slurm", "local"]
    nodes: int
    nproc_per_node: int
    cpus_per_node: int | None
    workdir: str
    directives: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...]
    modules: tuple[str, ...]
    python: str
    program: tuple[str, ...]
    notice_signal: str
    steps_total: int | None
    policy: Policy
    cloud: Cloud = "none"
    stop_on_rebalance: bool = False
    notice_lead_s: int = 120
    notice_s: int | None = None
    python_path: tuple[str, ...] = ()
    preflight: bool = False
    hang: Limits = field(default_factory=Limits)
    fabric: Promise | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.nproc_per_node

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LaunchPlan":
        """Return the plan that `to_json` gave ``data`` for.

        Raises:
            ValueError: It is none.
        """
        if unknown := dict(data).keys() - cls.__slots__:
            raise ValueError(f"there is no {min(unknown)!r} in a plan of this version")
        return _adapter().validate_python(data)


@cache
def _adapter() -> TypeAdapter[LaunchPlan]:
    # Three milliseconds to make, which ten thousand runs would feel.
    return TypeAdapter(LaunchPlan)


def plan(
    spec: JobSpec, profile: SiteProfile, *, layout: RunLayout, cwd: Path, python: str
) -> LaunchPlan:
    """Return the launch plan of ``spec`` on the site ``profile``.

    Args:
        spec: The job.
        profile: The site.
        layout: The run directory that the job will have.
        cwd: Where the script runs unless the job says otherwise.
        python: The interpreter unless the job says otherwise.

    Raises:
        SpecError: The job asks for what the site does not have.
    """
    partition = _partition(spec, profile)
    nproc = _workers(spec, profile)
    network = promise.of_site(profile)
    promise.check(spec, network)
    limit_s = _time_limit(spec, partition)
    job_name = f"{spec.name}-{hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]}"
    slurm = profile.scheduler == "slurm"
    directives = _directives(spec, profile, partition, nproc, limit_s, job_name, layout)
    return LaunchPlan(
        run=spec.name,
        run_dir=str(layout.root),
        job_name=job_name,
        site=profile.name,
        scheduler=profile.scheduler,
        nodes=spec.nodes,
        nproc_per_node=nproc,
        cpus_per_node=spec.cpus_per_node or profile.cpus_per_node,
        workdir=spec.workdir or str(cwd),
        directives=tuple(directives) if slurm else (),
        env=tuple(_environment(spec, profile).items()),
        modules=profile.modules + spec.modules,
        python=spec.python or python,
        program=_program(spec, layout),
        notice_signal=spec.notice.signal,
        steps_total=spec.train.steps if spec.train else None,
        policy=_policy(spec, nproc, seed=job_name),
        cloud=partition.cloud or profile.cloud,
        stop_on_rebalance=profile.stop_on_rebalance,
        notice_lead_s=spec.notice.lead_s,
        notice_s=_notice_s(spec, partition),
        preflight=bool(spec.preflight.checks),
        hang=spec.hang.limits(),
        fabric=network,
    )


def _policy(spec: JobSpec, nproc: int, *, seed: str) -> Policy:
    restart, elastic = spec.restart, spec.elastic
    return Policy(
        max_no_progress=restart.max_no_progress,
        require_rdma=spec.require_rdma and spec.nodes > 1,
        delay_s=restart.delay_s,
        max_delay_s=restart.max_delay_s,
        budgets=restart.budgets.by_cause(),
        on_gpu_memory=restart.on_gpu_memory,
        micro_batch=spec.train.micro_batch if spec.train else 1,
        exclude_after=restart.bad_nodes.after,
        forget_s=restart.bad_nodes.forget_s,
        max_excluded=restart.bad_nodes.at_most,
        sizes=_sizes(spec, nproc),
        patience_s=elastic.patience_s if elastic else 0.0,
        seed=seed,
    )


def _sizes(spec: JobSpec, nproc: int) -> tuple[int, ...]:
    """Return the node counts that the run may have, largest first.

    Raises:
        SpecError: It is elastic, and no smaller count suits the batch and the mesh.
    """
    if spec.elastic is None:
        return (spec.nodes,)
    smaller = range(spec.nodes - 1, spec.elastic.min_nodes - 1, -1)
    fit = tuple(n for n in smaller if spec.train is None or fits(spec.train, n * nproc))
    if not fit:
        raise SpecError(
            f"elastic.min_nodes: with {spec.elastic.min_nodes} to {spec.nodes - 1} nodes of {nproc}"
            " workers none suits train.global_batch, micro_batch and mesh; lower min_nodes or"
            " change the batch"
        )
    return (spec.nodes, *fit)


def _notice_s(spec: JobSpec, partition: PartitionProfile) -> int:
    known = [spec.notice.lead_s]
    if partition.preempt != "off" and partition.grace_s is not None:
        known.append(partition.grace_s)
    return min(known)


def _partition(spec: JobSpec, profile: SiteProfile) -> PartitionProfile:
    """Return what the profile knows of the partition; nothing of one it does not name."""
    if profile.scheduler == "local":
        _refuse_local(spec)
    if profile.account_required and spec.account is None:
        raise SpecError(f"account: the site {profile.name} needs one; add `account: ...`")
    name = spec.partition or profile.default_partition
    known = profile.partitions.get(name, PartitionProfile()) if name else PartitionProfile()
    if known.max_nodes is not None and spec.nodes > known.max_nodes:
        raise SpecError(
            f"nodes: {spec.nodes} are more than the partition {name} allows ({known.max_nodes})"
        )
    return known


def _refuse_local(spec: JobSpec) -> None:
    if spec.nodes != 1:
        raise SpecError(f"nodes: {spec.nodes} cannot be had on the site local; it is one machine")
    options = ("partition", "account", "qos", "reservation", "constraint", "comment", "time_limit")
    given = [name for name in options if getattr(spec, name) is not None]
    if given:
        raise SpecError(
            f"{given[0]}: the site local has no Slurm; remove it or choose another site"
        )


def _workers(spec: JobSpec, profile: SiteProfile) -> int:
    if spec.gpus_per_node is not None:
        if profile.gpu is not None and spec.gpus_per_node > profile.gpu.per_node:
            raise SpecError(
                f"gpus_per_node: {spec.gpus_per_node} are more than a node of {profile.name} has"
                f" ({profile.gpu.per_node} x {profile.gpu.model})"
            )
        return spec.gpus_per_node
    return profile.gpu.per_node if profile.gpu else 1


def _time_limit(spec: JobSpec, partition: PartitionProfile) -> int | None:
    """Return the limit in seconds: the job's, else the partition's, else the site's default."""
    limit_s = spec.time_limit or partition.time_limit
    if spec.time_limit and partition.time_limit and spec.time_limit > partition.time_limit:
        raise SpecError(
            f"time_limit: {slurm_time(spec.time_limit)} is more than the partition allows"
            f" ({slurm_time(partition.time_limit)})"
        )
    if limit_s is not None and spec.notice.lead_s >= limit_s:
        raise SpecError(
            f"notice.lead_s: {spec.notice.lead_s} s reach beyond the time limit of {limit_s} s;"
            " shorten the lead or raise time_limit"
        )
    return limit_s


def _directives(
    spec: JobSpec,
    profile: SiteProfile,
    partition: PartitionProfile,
    nproc: int,
    limit_s: int | None,
    job_name: str,
    layout: RunLayout,
) -> list[tuple[str, str]]:
    # `%` starts a pattern in --output: a folder called 100%j would never be found again.
    output = str(layout.output).replace("%", "%%")
    cpus = spec.cpus_per_node or profile.cpus_per_node
    options: list[tuple[str, str | None]] = [
        ("job-name", job_name),
        ("nodes", str(spec.nodes)),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", str(cpus) if cpus else None),
        _gpu_request(profile.gpu, nproc),
        ("mem", f"{spec.mem_gib}G" if spec.mem_gib else None),
        ("time", slurm_time(limit_s) if limit_s else None),
        ("partition", spec.partition or profile.default_partition),
        ("account", spec.account),
        ("qos", spec.qos),
        ("reservation", spec.reservation),
        ("constraint", spec.constraint or partition.constraint),
        ("comment", spec.comment or partition.comment),
        ("exclude", ",".join(spec.exclude) or None),
        ("signal", f"{spec.notice.signal}@{spec.notice.lead_s}"),
        ("requeue", ""),
        ("dependency", "singleton"),
        ("open-mode", "append"),
        ("output", output),
    ]
    return [(name, value) for name, value in options if value is not None]


def _gpu_request(gpu: GpuProfile | None, count: int) -> tuple[str, str | None]:
    if gpu is None:
        return ("gres", None)
    if gpu.request.endswith("-typed") and gpu.type is None:
        raise SpecError(
            f"the site profile asks for GPUs by type ({gpu.request}) and has no gpu.type"
        )
    forms: dict[str, tuple[str, str | None]] = {
        "gpus-per-node": ("gpus-per-node", str(count)),
        "gpus-per-node-typed": ("gpus-per-node", f"{gpu.type}:{count}"),
        "gres": ("gres", f"gpu:{count}"),
        "gres-typed": ("gres", f"gpu:{gpu.type}:{count}"),
        "none": ("gres", None),
    }
    return forms[gpu.request]


def slurm_time(seconds: int) -> str:
    """Return ``seconds`` as sbatch reads them.

    >>> slurm_time(131400), slurm_time(120)
    ('1-12:30:00', '00:02:00')
    """
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02}:{minute:02}:{second:02}"


def _environment(spec: JobSpec, profile: SiteProfile) -> dict[str, str]:
    return {**_DEFAULT_ENV, **profile.env, **spec.env}


def _program(spec: JobSpec, layout: RunLayout) -> tuple[str, ...]:
    if spec.script is not None:
        return (spec.script, *spec.args)
    return ("-m", "orchestrator.trainer", str(layout.train))


__all__ = ["LaunchPlan", "plan", "slurm_time"]
