"""From job and site to a launch plan: every value settled, nothing left to guess. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from orchestrator.clouds import Cloud
from orchestrator.errors import SpecError
from orchestrator.fabric.promise import Promise
from orchestrator.launchplan import placement, promise
from orchestrator.launchplan.container import PYTHON, Container, container, notice_signal
from orchestrator.launchplan.directives import directives
from orchestrator.launchplan.policy import Policy
from orchestrator.launchplan.target import Target, check_limits, target
from orchestrator.profile import SiteProfile, Terms
from orchestrator.rundir.layout import RunLayout
from orchestrator.rundir.limits import Limits
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


Pairs = tuple[tuple[str, str], ...]


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
        preflight: Whether each node is checked before torchrun (see `fitness`).
        hang: How long a rank may make no progress.
        node_order: Whether ranks follow the network's topology, as Slurm knows it.
        nodes_per_group: Nodes of a leaf switch or block, where the profile knows.
        switches: (nodes, --switches) of the sizes that an elastic run may shrink to.
        multi_node_env: Exported too where the job has several nodes.
        prepend: Put before what a list of paths holds already.
        scripts: Sourced before `env`, each with variables that steer it.
        srun: More options of srun; "" is one without a value.
        container: What the nodes run in; None for the host itself.
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
    node_order: bool = False
    nodes_per_group: int | None = None
    switches: tuple[tuple[int, str], ...] = ()
    multi_node_env: Pairs = ()
    prepend: Pairs = ()
    scripts: tuple[tuple[str, Pairs], ...] = ()
    srun: Pairs = ()
    container: Container | None = None
    fabric: Promise | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.nproc_per_node

    @property
    def mounts(self) -> tuple[str, ...]:
        """What the container sees of the host, as HOST:CONTAINER[:ro].

        Raises:
            SpecError: The run directory or the like cannot be mounted.
        """
        if self.container is None:
            return ()
        paths = [self.run_dir, *self.python_path]
        paths += [self.workdir] if self.container.workdir is None else []
        script = Path(self.program[0])
        paths += [str(script.parent)] if script.is_absolute() else []
        return self.container.all_mounts(paths)

    def size_options(self, nodes: int) -> list[str]:
        """Return the options that have a job of this plan start on ``nodes`` nodes."""
        options = [f"--nodes={nodes}"]
        # GPUs that are asked for in total, rather than for each node.
        for total in (value for name, value in self.directives if name == "gpus"):
            kind, colon, _ = total.rpartition(":")
            options.append(f"--gpus={kind}{colon}{nodes * self.nproc_per_node}")
        options += [f"--switches={value}" for size, value in self.switches if size == nodes]
        return options

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
    agreed = _agree(spec, profile)
    spec, where, nproc, inside = agreed.spec, agreed.where, agreed.nproc, agreed.inside
    job_name = _job_name(spec, layout)
    policy = _policy(spec, nproc, seed=job_name)
    topology = profile.fabric.topology
    return LaunchPlan(
        run=spec.name,
        run_dir=str(layout.root),
        job_name=job_name,
        site=profile.name,
        scheduler=profile.scheduler,
        nodes=spec.nodes,
        nproc_per_node=nproc,
        cpus_per_node=where.cpus_per_node,
        workdir=spec.workdir or str(cwd),
        directives=_options(agreed, profile, job_name=job_name, layout=layout),
        env=tuple(_environment(spec, profile).items()),
        modules=profile.modules + spec.modules,
        python=spec.python or (PYTHON if inside else python),
        program=_program(spec, layout),
        notice_signal=spec.notice.signal,
        steps_total=spec.train.steps if spec.train else None,
        policy=policy,
        cloud=where.partition_profile.cloud or profile.cloud,
        stop_on_rebalance=profile.stop_on_rebalance,
        notice_lead_s=spec.notice.lead_s,
        notice_s=_notice_s(spec, where.terms),
        preflight=bool(spec.preflight.checks),
        hang=spec.hang.limits(),
        node_order=placement.orders_nodes(spec, profile),
        nodes_per_group=topology.nodes_per_group if topology else None,
        switches=placement.by_size(spec, profile, policy.sizes[1:]),
        # Exported after `env`: what the job gives itself must not be lost to it.
        multi_node_env=_multi_node_env(spec, profile),
        prepend=tuple(profile.prepend.items()),
        scripts=tuple((one.path, tuple(one.env.items())) for one in profile.scripts),
        srun=tuple(profile.srun.items()),
        container=inside,
        fabric=agreed.network,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """What job and site settle together, once it is known that the site has it."""

    spec: JobSpec
    inside: Container | None
    where: Target
    nproc: int
    network: Promise
    limit_s: int | None


def _agree(spec: JobSpec, profile: SiteProfile) -> _Agreed:
    inside = container(spec, profile)
    spec = notice_signal(spec, inside)
    where = target(spec, profile)
    nproc = _workers(spec, profile, where)
    spec = placement.with_mesh(spec, profile, nproc=nproc)
    network = promise.of_site(profile)
    promise.check(spec, network)
    limit_s = _time_limit(spec, where)
    check_limits(spec, profile, where, workers=nproc)
    return _Agreed(
        spec=spec, inside=inside, where=where, nproc=nproc, network=network, limit_s=limit_s
    )


def _job_name(spec: JobSpec, layout: RunLayout) -> str:
    return f"{spec.name}-{hashlib.sha256(str(layout.root).encode()).hexdigest()[:8]}"


def _options(agreed: _Agreed, profile: SiteProfile, *, job_name: str, layout: RunLayout) -> Pairs:
    """Return the options for sbatch; without Slurm only those that the container asks for."""
    own = agreed.inside.directives if agreed.inside else ()
    if profile.scheduler != "slurm":
        return own
    options = directives(
        agreed.spec,
        profile,
        agreed.where,
        workers=agreed.nproc,
        limit_s=agreed.limit_s,
        job_name=job_name,
        layout=layout,
    )
    return (*options, *own)


def check_mounts(plan: LaunchPlan) -> None:
    """Refuse a plan whose container cannot be shown what it needs.

    Raises:
        SpecError: A path has characters that no container runtime can be told of.
    """
    _ = plan.mounts


def settle(spec: JobSpec, profile: SiteProfile) -> JobSpec:
    """Return ``spec`` with what the site settles of it: the shard groups of `mesh: hsdp`.

    Raises:
        SpecError: It asks for more GPUs than a node has, or for what the site does not have.
    """
    nproc = _workers(spec, profile, target(spec, profile))
    return placement.with_mesh(spec, profile, nproc=nproc)


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
        let_go_s=restart.bad_nodes.patience_s,
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


def _notice_s(spec: JobSpec, terms: Terms) -> int:
    known = [spec.notice.lead_s]
    if terms.preempt != "off" and terms.grace_s is not None:
        known.append(terms.grace_s)
    return min(known)


def _workers(spec: JobSpec, profile: SiteProfile, where: Target) -> int:
    gpu = where.gpu
    if spec.gpus_per_node is not None:
        if gpu is not None and spec.gpus_per_node > gpu.per_node:
            raise SpecError(
                f"gpus_per_node: {spec.gpus_per_node} are more than a node of {profile.name} has"
                f" ({gpu.per_node} x {gpu.model})"
            )
        return spec.gpus_per_node
    return gpu.per_node if gpu else 1


def _time_limit(spec: JobSpec, where: Target) -> int | None:
    """Return the limit in seconds: the job's, else the most that its partition or QOS gives."""
    limit_s = spec.time_limit or where.terms.time_limit
    if limit_s is not None and spec.notice.lead_s >= limit_s:
        raise SpecError(
            f"notice.lead_s: {spec.notice.lead_s} s reach beyond the time limit of {limit_s} s;"
            " shorten the lead or raise time_limit"
        )
    return limit_s


def _environment(spec: JobSpec, profile: SiteProfile) -> dict[str, str]:
    by_path = profile.env_container if spec.container else profile.env_host
    return {**_DEFAULT_ENV, **profile.env, **by_path, **spec.env}


def _multi_node_env(spec: JobSpec, profile: SiteProfile) -> Pairs:
    variables = profile.env_multi_node.items()
    return tuple((name, text) for name, text in variables if name not in spec.env)


def _program(spec: JobSpec, layout: RunLayout) -> tuple[str, ...]:
    if spec.script is not None:
        return (spec.script, *spec.args)
    return ("-m", "orchestrator.trainer", str(layout.train))


__all__ = ["LaunchPlan", "check_mounts", "plan", "settle"]
