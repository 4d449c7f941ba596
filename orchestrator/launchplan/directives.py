"""The options of a job for sbatch and srun. Pure."""

from collections.abc import Iterator

from orchestrator.errors import SpecError
from orchestrator.keys.fields import slurm_time
from orchestrator.keys.options import SET_BY_FSDPQ
from orchestrator.launchplan import placement
from orchestrator.launchplan.target import Target
from orchestrator.profile import GpuProfile, SiteProfile
from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.job import JobSpec

Pairs = list[tuple[str, str]]
# None leaves an option out.
Options = list[tuple[str, str | None]]


def directives(
    spec: JobSpec,
    profile: SiteProfile,
    where: Target,
    *,
    workers: int,
    limit_s: int | None,
    job_name: str,
    layout: RunLayout,
) -> Pairs:
    """Return the options for sbatch as (name, value), in the order of the script.

    Args:
        spec: The job.
        profile: Its site.
        where: Its partition, QOS and their terms.
        workers: Workers, and so GPUs, on a node.
        limit_s: The time limit in seconds.
        job_name: Unique to the run.
        layout: The run directory.

    Raises:
        SpecError: The job asks with an option that the site forbids, or for fewer switches than
            hold its nodes.
    """
    refuse_forbidden(spec, profile)
    options: Options = [
        ("job-name", job_name),
        *_nodes(spec, profile, where, workers=workers),
        ("time", slurm_time(limit_s) if limit_s else None),
        *_queue(spec, where),
        ("exclude", ",".join(spec.exclude) or None),
        ("switches", placement.switches(spec, profile)),
        ("segment", placement.segment(spec, profile, nproc=workers)),
        *(profile.options | spec.sbatch).items(),
        *_course(spec, layout),
    ]
    wanted = {name: value for name, value in options if value is not None}
    return [(name, value) for name, value in wanted.items() if name not in profile.forbidden]


def _nodes(spec: JobSpec, profile: SiteProfile, where: Target, *, workers: int) -> Options:
    """Return how many nodes it wants, and what of each."""
    cpus = where.cpus_per_node
    return [
        ("nodes", str(spec.nodes)),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", str(cpus) if cpus else None),
        gpu_request(where.gpu, workers, nodes=spec.nodes),
        ("mem", _memory(spec, profile, workers)),
        ("exclusive", "" if where.partition_profile.exclusive else None),
    ]


def _queue(spec: JobSpec, where: Target) -> Options:
    """Return where it waits, and on whose account."""
    return [
        ("partition", where.partition),
        ("account", spec.account),
        ("qos", where.qos),
        ("reservation", spec.reservation),
        ("constraint", where.constraint),
        ("comment", where.comment),
    ]


def _course(spec: JobSpec, layout: RunLayout) -> Options:
    """Return how it is told of its end and brought back, and where its output goes."""
    return [
        ("signal", f"{spec.notice.signal}@{spec.notice.lead_s}"),
        ("requeue", ""),
        ("dependency", "singleton"),
        ("open-mode", "append"),
        # `%` starts a pattern in --output: a folder called 100%j would never be found again.
        ("output", str(layout.output).replace("%", "%%")),
    ]


def _memory(spec: JobSpec, profile: SiteProfile, gpus: int) -> str | None:
    if spec.mem_gib:
        return f"{spec.mem_gib}G"
    if profile.memory_gib_per_gpu:
        return f"{profile.memory_gib_per_gpu * gpus}G"
    return "0" if profile.memory == "all" else None


def refuse_forbidden(spec: JobSpec, profile: SiteProfile) -> None:
    """Refuse a job that asks with an option that its site forbids.

    Raises:
        SpecError: It does; says why, a line for each option.
    """
    if problems := tuple(forbidden_asked(spec, profile)):
        raise SpecError("\n".join(problems))


def forbidden_asked(spec: JobSpec, profile: SiteProfile) -> Iterator[str]:
    """Yield which forbidden options the job asks with, each as `KEY: why; what to do`."""
    for option, why in profile.forbidden.items():
        key = SET_BY_FSDPQ.get(option)
        if option in spec.sbatch:
            yield f"sbatch.{option}: {profile.name} forbids it: {why}; remove it"
        # `nodes` and the like always have a value; what counts is what the job itself says.
        if key in spec.model_fields_set and key not in {"name", "nodes", "notice", "env"}:
            yield f"{key}: {profile.name} forbids --{option}: {why}; remove it"


def gpu_request(gpu: GpuProfile | None, count: int, *, nodes: int) -> tuple[str, str | None]:
    """Return how ``count`` GPUs on each of ``nodes`` nodes are asked for.

    >>> gpu_request(GpuProfile(model="H100", per_node=8, request="gpus"), 8, nodes=2)
    ('gpus', '16')
    """
    if gpu is None or gpu.request in ("none", "forbidden"):
        return ("gres", None)
    option = gpu.request.removesuffix("-typed")
    number = count * nodes if option == "gpus" else count
    parts = ["gpu"] if option == "gres" else []
    parts += [gpu.type] if gpu.request.endswith("-typed") and gpu.type else []
    return (option, ":".join([*parts, str(number)]))
