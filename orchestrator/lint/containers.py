"""Rules on what a container does not see by itself. Pure.

The job's scripts mount the topology file and nccl.conf where the host has them, and carry NCCL's
variables in; what is left are plug-ins and sockets.
"""

import re
from collections.abc import Iterator, Mapping

from orchestrator.errors import SpecError
from orchestrator.launchplan.container import container as container_of
from orchestrator.lint.case import Case, Setting
from orchestrator.lint.rule import Hit, rule
from orchestrator.profile import ContainerProfile

_GCP = "GoogleCloudPlatform/cluster-toolkit, examples/machine-learning"
# Where the plug-in of a network lies on the host, by the network's kind or name.
_PLUGINS: Mapping[str, str] = {
    "tcpx": "/var/lib/tcpx",
    "tcpxo": "/var/lib/tcpxo",
    "gIB": "/usr/local/gib",
}
# Files and sockets of the host that variables lead to.
_PATHS = ("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "NCCL_TUNER_CONFIG_PATH", "NCCL_NET_PLUGIN")
_CLEANED = frozenset({"--cleanenv", "-e", "--containall", "-C", "--contain-all"})


def _container(case: Case) -> ContainerProfile | None:
    return case.profile.container if case.contained else None


def _mounts(case: Case) -> tuple[str, ...]:
    """Return the mounts of the profile and of the job."""
    own = case.profile.container.mounts if case.profile.container else ()
    job = getattr(case.job.spec, "container", None) if case.job else None
    return (*own, *getattr(job, "mounts", ()))


def _inside(mount: str) -> str:
    """Return where a mount is in the container: HOST, HOST:CONTAINER or HOST:CONTAINER:MODE."""
    parts = mount.split(":")
    return (parts[1] if len(parts) > 1 and parts[1].startswith("/") else parts[0]).rstrip("/")


def _mounted(path: str, case: Case) -> bool:
    """Return whether ``path`` lies under a mount."""
    whole = f"{path.rstrip('/')}/"
    return any(whole.startswith(f"{_inside(one)}/") for one in _mounts(case))


def _holds_mount(path: str, case: Case) -> bool:
    """Return whether ``path`` or a folder in it is mounted."""
    return _mounted(path, case) or any(_inside(one).startswith(f"{path}/") for one in _mounts(case))


def _seen_inside(case: Case, *names: str) -> Iterator[Setting]:
    for one in case.named(*names):
        if one.inside is not False:
            yield one


@rule(
    "error",
    why="the job's container cannot be started there",
    do="correct it, or leave `container` out",
    source="the site profile: container",
)
def container_refused(case: Case) -> Iterator[Hit]:
    """A container on a site that starts none, or with options that its runtime does not take."""
    if case.job is None:
        return
    try:
        container_of(case.job.spec, case.profile)
    except SpecError as problem:
        key, _, why = str(problem).partition(": ")
        why, _, do = why.partition("; ")
        yield Hit(at=case.job.place(key), why=why, do=do or None)


@rule(
    "error",
    why="the network's plug-in lies on the host, and no mount brings it into the container: NCCL"
    " there trains over IP sockets",
    do="add its folder to container.mounts",
    source=_GCP,
)
def plugin_not_mounted(case: Case) -> Iterator[Hit]:
    """A network of a plug-in that the container does not see."""
    if not case.contained:
        return
    for name in (case.fabric, *case.profile.fabric.networks):
        folder = _PLUGINS.get(name)
        if folder and not _holds_mount(folder, case):
            at = case.place("container.mounts", ", ".join(_mounts(case)))
            yield Hit(at=at, why=f"{folder}: {plugin_not_mounted.why}")


@rule(
    "warn",
    why="it leads to a path of the host that no mount brings into the container",
    do="add the path to container.mounts, or set it in env_host only",
    source=_GCP,
)
def path_not_mounted(case: Case) -> Iterator[Hit]:
    """A variable with a path that the container does not see."""
    if case.contained:
        for one in _seen_inside(case, *_PATHS):
            if one.value.startswith("/") and not _mounted(one.value, case):
                yield Hit(at=one)


@rule(
    "warn",
    why="this option empties the environment of the container, NCCL's variables included",
    do="remove it, or name the variables in container.pass_env",
    source="apptainer-exec(1): --cleanenv, --containall",
)
def environment_emptied(case: Case) -> Iterator[Hit]:
    """A container of Apptainer that gets no environment, and variables that have to get in."""
    container = _container(case)
    if container is None or container.runtime not in ("apptainer", "singularity"):
        return
    lost = [one for one in _seen_inside(case, "NCCL_*", "FI_*") if not _passed(one, container)]
    for option in container.options:
        if option in _CLEANED and lost:
            why = f"{environment_emptied.why}, such as {lost[0].name}"
            yield Hit(at=case.place("container.options", option), why=why)


def _passed(one: Setting, container: ContainerProfile) -> bool:
    if one.inside or one.name in container.env:
        return True
    patterns = [re.escape(name).replace(r"\*", ".*") for name in container.pass_env]
    return any(re.fullmatch(pattern, one.name) for pattern in patterns)
