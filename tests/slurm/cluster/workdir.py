"""The cluster's folder on the machine's disk, and the removal of those left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .config import (
    USERS,
    ClusterConfig,
    cgroup_conf,
    gres_conf,
    group_line,
    hosts_file,
    passwd_line,
    shadow_file,
    slurm_conf,
    slurmdbd_conf,
)

# Not the folder of $TMPDIR: names of sockets below it must stay within 108 bytes.
PARENT = Path("/tmp")
PREFIX = "fsdpq-slurm"


def make_work_folder(config: ClusterConfig) -> Path:
    """A new folder with all files that the cluster starts from.

    Its name holds who made it, so that a later start can tell that its maker is gone.
    """
    remove_stale_folders()
    pid = os.getpid()
    work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{pid}-{_start_time(pid)}-", dir=PARENT))
    work.chmod(0o755)
    for name in ("log", "state", "etc", "slurm", "shared"):
        (work / name).mkdir()
    _write_system_files(config, work)
    write_slurm_conf(config, work)
    return work


def write_slurm_conf(config: ClusterConfig, work: Path) -> None:
    """Write slurm.conf anew; Slurm sees it when a daemon reads it again."""
    (work / "slurm" / "slurm.conf").write_text(slurm_conf(config, work))


def remove_stale_folders() -> None:
    """Remove the folders whose maker was killed before it could."""
    for folder in PARENT.glob(f"{PREFIX}-*-*-*"):
        pid, start_time = folder.name.removeprefix(f"{PREFIX}-").split("-")[:2]
        if _start_time(int(pid)) != start_time:
            shutil.rmtree(folder, ignore_errors=True)


def home(work: Path, name: str) -> Path:
    """The home directory of a test user, on the shared file system."""
    return work / "shared" / name


def _write_system_files(config: ClusterConfig, work: Path) -> None:
    passwd = "".join(passwd_line(user, home(work, user.name)) for user in USERS)
    group = "".join(group_line(user) for user in USERS)
    (work / "etc" / "passwd").write_text(_installed(config, "passwd") + passwd)
    (work / "etc" / "group").write_text(_installed(config, "group") + group)
    (work / "etc" / "shadow").write_text(shadow_file(_installed(config, "passwd") + passwd))
    (work / "etc" / "shadow").chmod(0o600)
    (work / "etc" / "hosts").write_text(hosts_file(config))
    (work / "slurm" / "gres.conf").write_text(gres_conf(config, work))
    (work / "slurm" / "cgroup.conf").write_text(cgroup_conf(config))
    if config.topology is not None:
        lines = (f"{line}\n" for line in config.topology.lines)
        (work / "slurm" / "topology.conf").write_text("".join(lines))
    (work / "slurm" / "slurmdbd.conf").write_text(slurmdbd_conf(work))
    (work / "slurm" / "slurmdbd.conf").chmod(0o600)
    for user in USERS:
        home(work, user.name).mkdir()
        os.chown(home(work, user.name), user.uid, user.uid)


def _installed(config: ClusterConfig, name: str) -> str:
    """A file of /etc as the Slurm release to run sees it."""
    return (config.version.root / "etc" / name).read_text()


def _start_time(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty if there is none.

    Source: proc(5), field 22 of /proc/PID/stat, counted from behind the command's name.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]
