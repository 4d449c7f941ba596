"""Whether a local copy fits: on its file system, and in the job's memory where that is one of RAM.

Pages of a file system in memory are charged to the job, so filling it could end the training.

Source: proc_pid_mountinfo(5), tmpfs(5).
"""

import contextlib
import os
from pathlib import Path

from orchestrator.trainer.memory_left import available

_KEPT_FREE = 0.1  # of the memory that is left, for everybody else
_OF_MEMORY = ("tmpfs", "ramfs")


def lack_of_room(folder: int, nbytes: int, *, ranks: int, root: Path = Path("/")) -> str:
    """Return why ``nbytes`` of each of the node's ``ranks`` do not fit; empty if they do.

    ``folder`` is a descriptor of where they go. What other ranks have written there since is no
    longer to come.
    """
    wanted = nbytes * ranks - _held(folder)
    disk = os.fstatvfs(folder)
    left = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and wanted > left:  # ramfs says nothing of its size
        return _words(wanted, left, "there")
    if not in_memory(os.fstat(folder).st_dev, root=root):
        return ""
    memory = available(root)
    if memory is not None and wanted > memory * (1 - _KEPT_FREE):
        return _words(wanted, memory, "in the memory of the node or of the job")
    return ""


def in_memory(device: int, *, root: Path = Path("/")) -> bool:
    """Return whether the file system with the number ``device`` lies in memory."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return True  # the careful answer
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return rest.split()[:1] in ([kind] for kind in _OF_MEMORY)
    return False


def _held(folder: int) -> int:
    held = 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            held += os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    return held


def _words(wanted: int, left: int, where: str) -> str:
    return f"{wanted / 2**30:.2f} GiB are needed and {left / 2**30:.2f} GiB are left {where}"
