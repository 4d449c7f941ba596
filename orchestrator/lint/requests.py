"""Rules on what is asked of sbatch and srun. Pure."""

from collections.abc import Iterator, Mapping

from orchestrator.keys.options import NEVER, SET_BY_FSDPQ
from orchestrator.launchplan.directives import forbidden_asked, gpu_request
from orchestrator.lint.case import Case, Job, Place
from orchestrator.lint.rule import Hit, rule
from orchestrator.profile import GpuProfile

SBATCH = "sbatch(1)"
# Each asks for GPUs; `gres` does where it names them.
_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_TRES = ("gres", "tres-per-job", "tres-per-node", "tres-per-task")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_OF_SRUN = frozenset(
    {
        "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "kill-on-bad-exit", "wait", "export",
        "overlap", "multi-prog", "no-kill",
    }
)  # fmt: skip


def _options(case: Case) -> Iterator[tuple[str, str, Place]]:
    """Yield (option, value, place) of what is added to sbatch's options."""
    job = case.job
    yield from _placed(case.profile.options, "options", case)
    if job is not None:
        yield from _placed(job.spec.sbatch, "sbatch", job)


def _placed(
    options: Mapping[str, str], block: str, owner: Case | Job
) -> Iterator[tuple[str, str, Place]]:
    for name, value in options.items():
        yield name, value, owner.place(f"{block}.{name}", value)


def _asks_gpus(option: str, value: str) -> bool:
    return option in _GPUS or (option in _TRES and "gpu" in value.lower())


def _gpus(case: Case) -> list[tuple[str, GpuProfile]]:
    """Return the kinds of GPUs that are asked for, each with its key."""
    if case.job is not None:
        where = case.job.where
        return [("gpu", where.gpu)] if where and where.gpu else []
    found = [("gpu", case.profile.gpu)]
    found += [(f"partitions.{name}.gpu", one.gpu) for name, one in case.profile.partitions.items()]
    return [(key, gpu) for key, gpu in found if gpu is not None]


@rule(
    "error",
    why="GPUs are asked for twice: Slurm refuses the job, or gives what satisfies both",
    do="leave one out; gpu.request in the profile says how the site wants it",
    source=SBATCH + ": --gres, --gpus, --gpus-per-node, --gpus-per-task",
)
def two_gpu_requests(case: Case) -> Iterator[Hit]:
    """An option for GPUs beside the profile's own request."""
    own = [gpu_request(gpu, 1, nodes=1) for _, gpu in _gpus(case)]
    asked = {option for option, value in own if value}
    given = [item for item in _options(case) if _asks_gpus(item[0], item[1])]
    for option, _, place in given:
        others = (asked | {name for name, _, _ in given}) - {option}
        if others:
            yield Hit(at=place, why=f"--{option} and --{min(others)}: {two_gpu_requests.why}")


@rule(
    "error",
    why="it takes the place of the GPU request, which is made with the same option",
    do="remove it; gpu.request, gpu.type and gpus_per_node say what to ask for",
    source="fsdpq: orchestrator/launchplan/directives.py",
)
def gpu_request_replaced(case: Case) -> Iterator[Hit]:
    """The option of the profile's own GPU request among its other options."""
    asked = {gpu_request(gpu, 1, nodes=1)[0] for _, gpu in _gpus(case)}
    for name, _, place in _placed(case.profile.options, "options", case):
        if name in asked:
            yield Hit(at=place)


@rule(
    "warn",
    why="it shuts each task's GPUs off from the others by cgroup, which breaks NCCL between tasks"
    " of a node; and there is one task a node here, which torchrun divides",
    do="remove it; gpus_per_node says how many GPUs a node gives",
    source="mila-iqia/mila-docs, general_theory/multigpu.md; " + SBATCH + ": --gpus-per-task",
)
def gpus_per_task(case: Case) -> Iterator[Hit]:
    """GPUs bound to tasks, in sbatch's options or srun's."""
    options = [*_options(case), *_placed(case.profile.srun, "srun", case)]
    yield from (Hit(at=place) for name, _, place in options if name == "gpus-per-task")


@rule(
    "error",
    why="memory is asked for twice, and Slurm takes one of --mem, --mem-per-cpu and --mem-per-gpu",
    do="leave one out",
    source=SBATCH + ": --mem",
)
def two_memory_requests(case: Case) -> Iterator[Hit]:
    """Memory by node and by CPU or GPU."""
    by_node = case.profile.memory is not None or (case.job and case.job.spec.mem_gib)
    given = [item for item in _options(case) if item[0] in _MEMORY]
    for name, _, place in given:
        if (by_node and name != "mem") or any(other != name for other, _, _ in given):
            yield Hit(at=place)


@rule(
    "info",
    why="neither the job nor the profile says how much memory a node is asked for, so a job gets"
    " Slurm's default there, which may be little",
    do="add `mem_gib: ...`, in a profile `memory_gib_per_gpu` or `memory: all`",
    source=SBATCH + ": --mem; slurm.conf(5): DefMemPerNode",
)
def memory_unknown(case: Case) -> Iterator[Hit]:
    """No request for memory on a site of Slurm with GPUs."""
    profile, job = case.profile, case.job
    known = profile.memory or profile.memory_gib_per_gpu or "mem" in profile.forbidden
    given = any(name in _MEMORY for name, _, _ in _options(case))
    shared = [gpu for _, gpu in _gpus(case) if gpu.request not in ("none", "forbidden")]
    if profile.scheduler != "slurm" or not shared or known or given:
        return  # where GPUs are not asked for, a job gets whole nodes
    if job is None:
        yield Hit(at=case.place("memory"))
    elif not job.spec.mem_gib:
        yield Hit(at=job.place("mem_gib"))


@rule(
    "warn",
    why="fsdpq sets this option from a key of its own, and the one here takes its place for every"
    " job",
    do="use the key instead",
    source="fsdpq: orchestrator/keys/options.py",
)
def option_of_fsdpq(case: Case) -> Iterator[Hit]:
    """An option in a profile that has a key, or that the run is held by."""
    for name, _, place in _placed(case.profile.options, "options", case):
        if name in NEVER:
            why = "this is how fsdpq keeps hold of a run; changed, runs are lost or never end"
            yield Hit(at=place, why=why, do="remove it", level="error")
        elif name in SET_BY_FSDPQ and name not in (*_GPUS, "gres"):
            yield Hit(at=place, do=f"use the key `{SET_BY_FSDPQ[name]}`")


@rule(
    "error",
    why="srun starts one task a node with all of the job's environment; this changes that",
    do="remove it",
    source="srun(1); fsdpq: templates/_4_launch.sh.j2",
)
def srun_of_fsdpq(case: Case) -> Iterator[Hit]:
    """An option of srun that fsdpq sets."""
    options = _placed(case.profile.srun, "srun", case)
    yield from (Hit(at=place) for name, _, place in options if name in _OF_SRUN)


@rule(
    "error",
    why="the site refuses jobs with this option",
    do="remove it",
    source="the profile's own `forbidden`",
)
def forbidden_directive(case: Case) -> Iterator[Hit]:
    """An option that the site forbids, asked for by its profile or by the job."""
    forbidden = case.profile.forbidden
    options = [
        *_placed(case.profile.options, "options", case),
        *_placed(case.profile.srun, "srun", case),
    ]
    for name, _, place in options:
        if name in forbidden:
            yield Hit(at=place, why=f"the site refuses --{name}: {forbidden[name]}")
    for key, gpu in _gpus(case):
        option, value = gpu_request(gpu, 1, nodes=1)
        if value and option in forbidden:
            at = case.place(f"{key}.request", gpu.request)
            why = f"the site refuses --{option}: {forbidden[option]}; so no GPU is asked for"
            yield Hit(at=at, why=why, do="use `request: forbidden`")
    yield from _job_asks_forbidden(case)


def _job_asks_forbidden(case: Case) -> Iterator[Hit]:
    if case.job is None:
        return
    for problem in forbidden_asked(case.job.spec, case.profile):
        key, _, why = problem.partition(": ")
        yield Hit(at=case.job.place(key), why=why.removesuffix("; remove it"))
