"""What host memory the node and the job's cgroups have left. Imports no torch."""

from pathlib import Path

_KEPT_FREE = 0.1  # of what is left, for everybody else


def lack(nbytes: int, *, ranks: int, root: Path = Path("/")) -> str:
    """Return why this node has no room for ``nbytes`` of each of its ``ranks``; empty if it has."""
    left = available(root)
    wanted = nbytes * ranks
    if left is None or wanted <= left * (1 - _KEPT_FREE):
        return ""
    return (
        f"{wanted / 2**30:.1f} GiB of host memory are needed for the copy ({ranks} ranks on this"
        f" node), and {left / 2**30:.1f} GiB are left"
    )


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes that the node and the cgroups of this process have left, None if unknown.

    Source: proc(5) for MemAvailable; Documentation/admin-guide/cgroup-v2.rst for memory.max; what
    the page cache holds (file pages) is given back when memory is asked for.
    """
    found = [_node(root), *_cgroups(root)]
    return min((value for value in found if value is not None), default=None)


def _node(root: Path) -> int | None:
    return _line(root / "proc/meminfo", "MemAvailable:", unit=1024)


def _cgroups(root: Path) -> list[int | None]:
    """Return what each cgroup above this process has left. Version 2, else the memory of 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int | None] = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds == "":
            names = ("memory.max", "memory.current", "")
            found += _above(root / "sys/fs/cgroup", name, *names)
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            found += _above(root / "sys/fs/cgroup/memory", name, *names)
    return found


def _above(top: Path, name: str, limit: str, used: str, prefix: str) -> list[int]:
    folder = top / name.lstrip("/")
    found = []
    while folder.is_relative_to(top):
        most, now = _number(folder / limit), _number(folder / used)
        if most is not None and now is not None:
            # Not "file": that counts memory like ours too, which nobody gives back.
            lists = (f"{prefix}{which}_file " for which in ("active", "inactive"))
            cached = sum(_line(folder / "memory.stat", start, unit=1) or 0 for start in lists)
            found.append(max(0, most - now + cached))
        folder = folder.parent
    return found


def _line(path: Path, start: str, *, unit: int) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) * unit for line in lines if line.startswith(start))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())  # "max" is no number
    except (OSError, ValueError):
        return None
