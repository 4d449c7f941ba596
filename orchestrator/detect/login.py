"""What the login node shows: containers, modules, limits, file systems. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.detect.draft import Draft
from orchestrator.preflight.hcas import Port
from orchestrator.slurm.cluster import Cluster

# Programs by the order in which a site that has several wants them used.
RUNTIMES = ("apptainer", "singularity", "shifter", "podman-hpc")
# File systems that each node has for itself, as `stat -f` calls them.
_OWN = frozenset({"ext2/ext3", "xfs", "btrfs", "zfs", "tmpfs", "overlayfs", "f2fs"})
# Limits above these are none to anybody.
_MANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file system, by where it is mounted."""

    at: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login node, as its user sees it.

    Attributes:
        groups: Of the user; None where they cannot be looked up.
        programs: Those of RUNTIMES that are on PATH.
        plugins: The text of Slurm's plugstack.conf.
        modules: The module system, in words.
        cpu_s: Seconds of processor time that one process may use.
        memory_bytes: For all processes of the user.
        used: Folders that the user works in, by the variable that names them.
    """

    host: str
    groups: tuple[str, ...] | None = None
    programs: tuple[str, ...] = ()
    plugins: str = ""
    modules: str = ""
    cpu_s: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    used: Mapping[str, str] = field(default_factory=dict)


def put_login(draft: Draft, login: Login, cluster: Cluster) -> None:
    """Add what ``login`` showed."""
    _put_container(draft, login, cluster)
    _put_limits(draft, login, cluster)
    for name, path in login.used.items():
        put_storage(draft, path, login.mounts, f"${name} and /proc/mounts on {login.host}")
    if login.modules:
        draft.note(f"modules: {login.modules}")


def _put_container(draft: Draft, login: Login, cluster: Cluster) -> None:
    found = next(_runtimes(login, cluster), None)
    if found is not None:
        draft.put(("container", "runtime"), *found)


def _runtimes(login: Login, cluster: Cluster) -> Iterator[tuple[str, str]]:
    if re.search(r"^\s*(-\w, )?--container-image\b", cluster.srun_options, re.MULTILINE):
        yield "pyxis", "srun --help: --container-image"
    elif re.search(r"^\s*(required|optional)\s+\S*pyxis\S*\.so", login.plugins, re.MULTILINE):
        yield "pyxis", "plugstack.conf: spank_pyxis.so"
    if re.search(r"^\s*(-\w, )?--environment\b", cluster.srun_options, re.MULTILINE):
        yield "edf", "srun --help: --environment"
    for name in RUNTIMES:
        if name in login.programs:
            yield name, f"{name} is on PATH on {login.host}"


def _put_limits(draft: Draft, login: Login, cluster: Cluster) -> None:
    where = f"login node {login.host}"
    if "enable" in cluster.config.get("ScronParameters", ""):
        draft.put(("login", "watch"), "scrontab", "scontrol show config: ScronParameters=enable")
    if login.cpu_s and login.cpu_s // 60:
        draft.put(("login", "cpu_minutes"), login.cpu_s // 60, f"{where}: ulimit -t")
    if login.memory_bytes and (gib := login.memory_bytes >> 30):
        draft.put(("login", "memory_gib"), gib, f"{where}: ulimit -v, cgroup memory.max")
    if login.processes and login.processes < _MANY:
        draft.put(("login", "processes"), login.processes, f"{where}: ulimit -u, cgroup pids.max")


def put_storage(draft: Draft, path: str, mounts: tuple[Mount, ...], source: str) -> None:
    """Add the file system that ``path`` lies on."""
    found = _mount_of(path, mounts)
    # What lies on the root of a login node says nothing of the nodes.
    if found is None or found.at == "/":
        return
    draft.put(("storage", found.at, "filesystem"), found.kind, source)


def put_node_local(draft: Draft, path: str, kind: str, source: str) -> None:
    """Add a folder of the nodes, if each node has its own."""
    if kind in _OWN:
        draft.put(("storage", path, "filesystem"), kind, source)
        draft.put(("storage", path, "node_local"), True, source)


def _mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    around = [one for one in mounts if path == one.at or path.startswith(f"{one.at.rstrip('/')}/")]
    return max(around, key=lambda one: len(one.at), default=None)


def mounts(text: str) -> tuple[Mount, ...]:
    r"""Return the file systems in the text of /proc/mounts.

    >>> mounts("10.0.0.1@tcp:/work /work lustre rw 0 0\n")
    (Mount(at='/work', kind='lustre'),)
    """
    rows = (line.split() for line in text.splitlines())
    return tuple(Mount(at=row[1], kind=row[2]) for row in rows if len(row) >= 3)


def module_system(environment: Mapping[str, str]) -> str:
    """Return the module system that a login shell's environment tells of.

    >>> module_system({"LMOD_VERSION": "8.7.37"}), module_system({})
    ('Lmod 8.7.37', '')
    """
    if "LMOD_CMD" in environment or "LMOD_VERSION" in environment:
        return f"Lmod {environment.get('LMOD_VERSION', '')}".strip()
    if "MODULESHOME" in environment or "BASH_FUNC_module%%" in environment:
        return "Environment Modules"
    return ""
