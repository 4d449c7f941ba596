"""Slurm on a machine that has none and no package registry: from a folder of .deb files.

    python -m tests.gpu.packages DIR [ROOT]

Debian 12's packages of Slurm 22.05 also run on Ubuntu 24.04. Nothing that the machine has is
overwritten: a file that is there stays, so its own libraries do. iproute2 comes with libraries
that must not be mixed with others, so it goes to a folder of its own, with `ip` and `tc` in
/usr/local/sbin.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

APART = (
    *("iproute2", "libbpf1", "libelf1", "libmnl0", "libbsd0", "libmd0", "libxtables12"),
    *("libtirpc3", "libdb5.3", "libcap2"),
)
APART_FOLDER = Path("usr/lib/iproute2-apart")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
# Debian's alternatives, which the packages' own scripts would set up.
LINKS = {f"usr/sbin/{name}": f"{name}-wlm" for name in ("slurmctld", "slurmd", "slurmstepd")}
# slurmd 22.05 looks for it where cgroup v2 is mounted and systemd does not run.
CGROUP = Path("/sys/fs/cgroup")


def install(debs: Path, root: Path = Path("/")) -> None:
    """Unpack all .deb files in ``debs`` into ``root``, and set up what their scripts would.

    Raises:
        SystemExit: There are none.
        subprocess.CalledProcessError: One cannot be unpacked.
    """
    files = sorted(debs.glob("*.deb"))
    if not files:
        sys.exit(f"{debs}: there are no .deb files")
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            apart = file.name.split("_")[0] in APART
            where = root / APART_FOLDER if apart else Path(scratch)
            where.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg", "-x", str(file), str(where)], check=True)
        add(Path(scratch), root)
    (root / "etc/slurm").mkdir(parents=True, exist_ok=True)
    for name, target in LINKS.items():
        link(root / name, target)
    if (root / APART_FOLDER).exists():
        wrap(root)
    if root == Path("/"):
        subprocess.run(["ldconfig"], check=False)


def add(source: Path, root: Path) -> None:
    """Copy what is below ``source`` and not yet in ``root``.

    By name, so that the packages' /lib follows a link to usr/lib; unpacked over it, it would take
    its place.
    """
    for path in walk(source):
        target = root / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
        elif not os.path.lexists(target):
            shutil.copy2(path, target, follow_symlinks=False)


def walk(folder: Path) -> Iterator[Path]:
    """Yield all below ``folder``, a folder before what is in it; links are not followed."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)


def link(name: Path, target: str) -> None:
    """Make a link, unless there is something that works."""
    if not name.exists():
        name.unlink(missing_ok=True)
        name.symlink_to(target)


def wrap(root: Path) -> None:
    """Put `ip` and `tc` where they are looked for, each with the libraries it came with."""
    folder = Path("/") / APART_FOLDER
    libraries = ":".join(str(folder / name) for name in LIBRARIES)
    for program, where in {"ip": "bin/ip", "tc": "sbin/tc"}.items():
        script = root / "usr/local/sbin" / program
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {folder / where} "$@"\n')
        script.chmod(0o755)


def make_cgroup() -> None:
    """Make the group that slurmd expects of systemd, where systemd is not there."""
    if (CGROUP / "cgroup.controllers").exists():
        (CGROUP / "system.slice").mkdir(exist_ok=True)


if __name__ == "__main__":
    install(*(Path(word) for word in sys.argv[1:3]))
