"""Look at this login node: the effects. Nothing here starts a process."""

import grp
import os
import pwd
import resource
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from orchestrator.detect.login import RUNTIMES, Login, module_system, mounts
from orchestrator.preflight.hcas import read_ports

_MOST_BYTES = 1 << 20
_FOLDERS = ("HOME", "SCRATCH", "WORK", "PROJECT")


def user_name() -> str:
    """Return the name of whoever runs this, as the system knows it; USER may say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid that the login node cannot look up
        return os.environ.get("USER") or str(os.getuid())


def login_node(plugins: str | None = None) -> Login:
    """Return what this machine shows.

    Args:
        plugins: The path of plugstack.conf, if Slurm told it.
    """
    return Login(
        host=socket.gethostname(),
        groups=_groups(),
        programs=tuple(name for name in RUNTIMES if shutil.which(name)),
        plugins=_text(Path(plugins)) if plugins else "",
        modules=module_system(os.environ),
        cpu_s=_limit(resource.RLIMIT_CPU),
        memory_bytes=_least(_limit(resource.RLIMIT_AS), _cgroup("memory.max")),
        processes=_least(_limit(resource.RLIMIT_NPROC), _cgroup("pids.max")),
        ports=tuple(read_ports()),
        mounts=mounts(_text(Path("/proc/self/mounts"))),
        used=_used(os.environ),
    )


def _groups() -> tuple[str, ...] | None:
    names = []
    for number in {os.getgid(), *os.getgroups()}:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:  # a group without a name here may have one on the controller
            return None
    return tuple(sorted(names))


def _used(environment: Mapping[str, str]) -> dict[str, str]:
    given = {name: environment.get(name, "") for name in _FOLDERS}
    return {name: path for name, path in given.items() if path.startswith("/")}


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _cgroup(name: str) -> int | None:
    """Return a limit of the user's slice (cgroup v2), which is what admins set on login nodes."""
    text = _text(Path(f"/sys/fs/cgroup/user.slice/user-{os.getuid()}.slice/{name}")).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
