"""Shell lines that decide what is visible where. Pure but for reading file modes.

An ordinary user must reach the interpreter and the checkout wherever they lie, and each host
has a /tmp of its own. Both are the same trick: an empty tmpfs over a directory, with a few of
the paths below it bound back in.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def needed_paths() -> list[Path]:
    """What a job needs to run this project: interpreter, environment, checkout, PYTHONPATH.

    The system's own /usr is left out: everybody reaches it, and each release of Slurm has its own.
    """
    prefixes = (sys.base_prefix, sys.prefix, Path(sys.executable).resolve().parents[1])
    more = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    paths = {path.resolve() for path in map(Path, [*map(str, prefixes), *more]) if path.exists()}
    paths.add(REPOSITORY)
    return outermost(paths - {Path("/usr")})


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that lie below no other of them, sorted."""
    ordered = sorted(set(paths))
    return [path for path in ordered if not any(other in path.parents for other in ordered)]


def closed_directories(paths: Iterable[Path], *, below: Path = Path("/")) -> list[Path]:
    """The outermost directories above the paths, and below one, that others may not enter."""
    parents = {parent for path in paths for parent in path.parents if below in parent.parents}
    return outermost(parent for parent in parents if parent.exists() and not _is_open(parent))


def _is_open(directory: Path) -> bool:
    return bool(directory.stat().st_mode & stat.S_IXOTH)


def open_closed_directories(paths: Iterable[Path]) -> list[str]:
    """Shell lines after which an ordinary user reaches every path."""
    keep = list(paths)
    return [line for closed in closed_directories(keep) for line in cover(closed, keep=keep)]


def fill_root(root: Path, shown: Iterable[Path]) -> list[str]:
    """Shell lines that show the machine's paths in the root of another system."""
    targets = {root / path.relative_to("/"): path for path in outermost(shown)}
    lines = [
        f"mount --bind {quoted(root)} {quoted(root)}",  # unshare wants a mount point as root
        f"touch {quoted(root / 'etc' / 'hosts')}",  # a fresh system lacks it
    ]
    for closed in closed_directories(targets, below=root):
        lines += cover(closed, keep=())
    for target, path in targets.items():
        lines += [f"mkdir -p {quoted(target)}", f"mount --rbind {quoted(path)} {quoted(target)}"]
    return lines


def cover(directory: Path, *, keep: Iterable[Path], mode: str = "755") -> list[str]:
    """Shell lines (bash) that empty a directory but for the paths to keep."""
    kept = [path for path in outermost(keep) if directory in path.parents]
    # An open descriptor still leads to the old directory once the tmpfs hides its name.
    lines = [f"exec {{kept{i}}}<{quoted(path)}" for i, path in enumerate(kept)]
    lines.append(f"mount -t tmpfs -o mode={mode} tmpfs {quoted(directory)}")
    for i, path in enumerate(kept):
        lines += [
            f"mkdir -p {quoted(path)}",
            f"mount --no-canonicalize --rbind /proc/self/fd/$kept{i} {quoted(path)}",
            f"exec {{kept{i}}}<&-",
        ]
    return lines


def only_devices(kept: Iterable[str]) -> list[str]:
    """Shell lines that leave no GPU in /dev but those to keep.

    Slurm numbers the GPUs of each host from 0, and so does CUDA those that it can open: without
    this, the hosts of one machine would all take the same one.
    """
    words = " ".join(quoted(Path(path)) for path in kept)
    return [
        "mkdir -p /run/dev",
        "mount -t tmpfs -o mode=755 tmpfs /run/dev",
        "cp -ax /dev/. /run/dev",  # but for what is mounted in it, as GPUs are in a container
        "cp -a --remove-destination /dev/nvidia* /run/dev",
        "for i in /run/dev/nvidia[0-9]*; do",
        f'  [[ " {words} " == *" /dev/${{i##*/}} "* ]] || rm -f "$i"',
        "done",
        "for i in pts mqueue; do",
        "  [ ! -d /dev/$i ] || mount --rbind /dev/$i /run/dev/$i",
        "done",
        # The driver's libraries would make the missing files anew; to open one needs no writing.
        "mount -o remount,ro /run/dev",
        "mount --move /run/dev /dev",
    ]


def bind(source: Path, target: Path) -> str:
    """A shell line that shows a file or directory at a second place."""
    return f"mount --bind {quoted(source)} {quoted(target)}"


def quoted(path: Path) -> str:
    """The path as one word of a shell line."""
    return shlex.quote(str(path))
