"""Rules on what torch, CUDA and the launcher read. Pure."""

from collections.abc import Iterator

from orchestrator.lint.case import Case
from orchestrator.lint.rule import GUIDE, Hit, number, rule
from orchestrator.redact import redacted

# Set for each rank by torchrun, for each node by fsdpq's scripts, or for the job by Slurm.
_LAUNCHER = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "NODE_RANK", "TORCHELASTIC_*", "SLURM_*", "SBATCH_*",
)  # fmt: skip
_NEEDED = {"INIT", "NET"}


@rule(
    "warn",
    why="the launcher or Slurm sets it for each node or rank; a fixed value is lost, or sends all"
    " ranks to the wrong place",
    do="remove it",
    source="torchrun (torch.distributed.run); sbatch(1)",
)
def launcher_var(case: Case) -> Iterator[Hit]:
    """What differs from node to node."""
    return (Hit(at=one) for one in case.named(*_LAUNCHER))


@rule(
    "warn",
    why="3 is what lets a hung collective be dumped and the job be brought back; with 1 the flight"
    " recorder is cut off, with 0 nothing ends the job",
    do="remove it",
    source="torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
)
def error_handling(case: Case) -> Iterator[Hit]:
    """Another way of handling errors than torch's default."""
    for one in case.named("TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        if number(one.value) != 3:
            yield Hit(at=one)


@rule(
    "info",
    why="this is for finding faults, and costs time at every step",
    do="remove it once the fault is found",
    source="torch.distributed, Environment Variables",
)
def torch_debugging(case: Case) -> Iterator[Hit]:
    """Switches of torch for finding faults, turned on."""
    names = ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_NAN_CHECK")
    for one in case.named(*names, "TORCH_NCCL_ENABLE_TIMING"):
        if one.value.lower() not in ("0", "false"):
            yield Hit(at=one)


@rule(
    "warn",
    why="every kernel or collective is waited for, so nothing overlaps any more",
    do="remove it once the fault is found",
    source="CUDA programming guide, CUDA_LAUNCH_BLOCKING; torch.distributed,"
    " TORCH_DISTRIBUTED_DEBUG",
)
def all_waits(case: Case) -> Iterator[Hit]:
    """Overlap turned off."""
    for one in case.named("CUDA_LAUNCH_BLOCKING"):
        if number(one.value) not in (None, 0):
            yield Hit(at=one)
    yield from (
        Hit(at=one)
        for one in case.named("TORCH_DISTRIBUTED_DEBUG")
        if one.value.upper() == "DETAIL"
    )


@rule(
    "warn",
    why="with one hardware queue FSDP's all-gathers wait behind the computation that they should"
    " overlap with; 1 is for tensor parallelism in Megatron",
    do="remove it",
    source="NVIDIA/Megatron-LM, arguments.py: refuses 1 together with FSDP2",
)
def one_connection(case: Case) -> Iterator[Hit]:
    """CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron has it."""
    names = case.named("CUDA_DEVICE_MAX_CONNECTIONS")
    return (Hit(at=one) for one in names if number(one.value) == 1)


@rule(
    "error",
    why="a node has more workers than GPUs are visible",
    do="remove it: Slurm and torchrun give each worker its GPU",
    source="CUDA programming guide, CUDA_VISIBLE_DEVICES",
)
def visible_devices(case: Case) -> Iterator[Hit]:
    """Fewer visible GPUs than workers."""
    gpu = case.profile.gpu
    workers = case.job.workers if case.job else (gpu.per_node if gpu else 0)
    for one in case.named("CUDA_VISIBLE_DEVICES"):
        shown = len([part for part in one.value.split(",") if part.strip()])
        if shown < workers:
            yield Hit(at=one, why=f"{shown} GPUs are visible to {workers} workers")


@rule(
    "warn",
    why="what NCCL says at INFO with INIT and NET is the proof of which network was used, and"
    " whether by GPUDirect; it goes into a file of the attempt and costs nothing while training",
    do="leave NCCL_DEBUG and NCCL_DEBUG_SUBSYS unset",
    source=GUIDE + ": NCCL_DEBUG, NCCL_DEBUG_SUBSYS",
    advice=True,
)
def nccl_log_lost(case: Case) -> Iterator[Hit]:
    """A log that says too little to tell the network by."""
    for one in case.named("NCCL_DEBUG"):
        if one.value.upper() not in ("INFO", "TRACE", "ABORT"):
            yield Hit(at=one)
    for one in case.named("NCCL_DEBUG_SUBSYS"):
        given = set(one.value.upper().replace(" ", "").split(","))
        excluded = {name.lstrip("^") for name in given} if one.value.startswith("^") else set()
        if (excluded & _NEEDED) or not (excluded or "ALL" in given or given >= _NEEDED):
            yield Hit(at=one)


@rule(
    "warn",
    why="TRACE and ALL write a line for every operation, gigabytes a day for each rank",
    do="remove it once the fault is found",
    source=GUIDE + ": NCCL_DEBUG",
)
def nccl_log_huge(case: Case) -> Iterator[Hit]:
    """A log that fills the disk."""
    for one in case.named("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"):
        if one.value.upper() == ("TRACE" if one.name == "NCCL_DEBUG" else "ALL"):
            yield Hit(at=one)


@rule(
    "warn",
    why="each attempt keeps NCCL's log in its own folder, where `fsdpq` looks for the network and"
    " for the first error; elsewhere it is not found, and each attempt overwrites the last",
    do="remove it",
    source=GUIDE + ": NCCL_DEBUG_FILE",
)
def nccl_log_elsewhere(case: Case) -> Iterator[Hit]:
    """Another file for NCCL's log."""
    for one in case.named("NCCL_DEBUG_FILE"):
        home = "; NCCL does not know ~" if one.value.startswith("~") else ""
        yield Hit(at=one, why=nccl_log_elsewhere.why + home)


@rule(
    "info",
    why="the job says otherwise than the site's profile, and the job wins",
    do="remove it, unless that is what you want",
    source="fsdpq: values that a job gives are kept",
)
def against_the_site(case: Case) -> Iterator[Hit]:
    """A variable to which profile and job give different values."""
    if case.job is None:
        return
    profile = case.profile
    inside = profile.env_container if case.job.contained else profile.env_host
    site = {**profile.env, **inside, **profile.env_multi_node}
    for one in case.settings:
        theirs = site.get(one.name, one.value)
        if one.file == case.job.file and one.key.startswith("env.") and theirs != one.value:
            yield Hit(
                at=one,
                why=f"the profile of {profile.name} says {redacted(theirs)}, and the job wins",
            )
