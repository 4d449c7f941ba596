"""Note what an attempt runs with: Python, packages, modules, container, driver, live code.

A copy of this file lies in each run directory. The first node runs it in the background with the
job's own Python, which need not have fsdpq: the standard library of Python 3.8 is enough. It holds
nothing up: what it cannot find out is left out, and it ends by itself within a minute.

Nothing of the environment is written down but the names below: it may hold secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator  # noqa: UP035 (Python 3.8)

_LIMIT_S = 60
_GIT_LIMIT_S = 10
_DRIVER = "/proc/driver/nvidia/version"
# The job's own `container:`; else Apptainer, Singularity, Slurm's --container, enroot behind pyxis.
_CONTAINERS = (
    "FSDPQ_CONTAINER",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "SLURM_CONTAINER",
    "ENROOT_ROOTFS",
)
_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def main() -> None:
    """Write the record of this attempt."""
    signal.alarm(_LIMIT_S)  # ends this process; there is nothing to clean up
    run_dir = Path(os.environ["FSDPQ_RUN_DIR"])
    sys.path[:] = [entry for entry in sys.path if Path(entry) != run_dir]  # this file's own folder
    found = record(run_dir)
    _write(Path(os.environ["FSDPQ_ATTEMPT_DIR"]) / "environment.json", json.dumps(found))


def record(run_dir: Path) -> dict[str, Any]:
    """Return what this process runs with, and leave the list of its packages in the run."""
    system = os.uname()
    return {
        "at": time.time(),
        "host": system.nodename,
        "kernel": system.release,
        "python": {
            "version": "{}.{}.{}".format(*sys.version_info[:3]),
            "executable": sys.executable,
            "prefix": sys.prefix,
        },
        "packages": _keep(run_dir, packages(sys.path)),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "container": container(os.environ),
        "driver": driver(_read(Path(_DRIVER))),
        "code": live_code(run_dir),
    }


def packages(path: list[str]) -> dict[str, str]:
    """Return the installed distributions, name to version: the first one on ``path`` counts.

    From the names of their folders: reading each one's metadata takes a second on a shared file
    system where there are hundreds.
    """
    found: dict[str, str] = {}
    for entry in path:
        for name, version in sorted(_distributions(entry)):
            found.setdefault(name, version)
    return found


def _distributions(folder: str) -> Iterator[tuple[str, str]]:
    try:
        entries = list(Path(folder).iterdir())
    except OSError:
        return
    for entry in entries:
        match = _DISTRIBUTION.fullmatch(entry.name)
        if match:
            yield re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"]


def _keep(run_dir: Path, found: dict[str, str]) -> str | None:
    """Write the list under its hash, once for all attempts that have the same; return the hash."""
    text = "".join("{}=={}\n".format(*item) for item in sorted(found.items()))
    name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    path = run_dir / "environments" / (name + ".txt")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            _write(path, text)
    except OSError:
        return None
    return name


def container(environment: Any) -> str | None:
    """Return the image this runs in, without what may stand before `@` in its address."""
    for name in _CONTAINERS:
        if environment.get(name):
            return re.sub(r"//[^/]*@", "//", environment[name])
    return None


def driver(text: str) -> str | None:
    """Return the version of the NVIDIA driver from its own file.

    >>> driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025")
    '570.86.15'
    """
    match = re.search(r"Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", text)
    return match[1] if match else None


def live_code(run_dir: Path) -> dict[str, Any] | None:
    """Return what the live files are at: commit, and hashes of the difference and the script.

    None where the run keeps its own copy.
    """
    try:
        kept = json.loads(_read(run_dir / "code.json"))
        if kept["mode"] != "live":
            return None
    except (ValueError, KeyError, TypeError):
        return None
    # Without a script the program is fsdpq's own trainer.
    root = kept.get("root") or kept.get("fsdpq", {}).get("root")
    return {
        "root": root,
        "commit": _git(root, "rev-parse", "--verify", "--quiet", "HEAD"),
        "difference": _hash(_git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--")),
        "script": _hash(_read(Path(kept["script"])) if kept.get("script") else None),
    }


def _git(root: str | None, *words: str) -> str | None:
    """Return what git says; nothing of the repository's own is run."""
    settings = ["core.fsmonitor=false", "core.hooksPath=/dev/null"]
    for name in ("process=", "clean=", "required=false"):
        settings.append("filter.lfs." + name)
    options = [word for setting in settings for word in ("-c", setting)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603 (an argument list of ours, no shell)
            ["git", "--no-pager", *options, *words],  # noqa: S607 (the user's own git)
            cwd=root,
            env=dict(kept, LC_ALL="C", GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def _hash(text: str | None) -> str | None:
    return (
        hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16] if text is not None else None
    )


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 24)
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.new-{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    draft.replace(path)


if __name__ == "__main__":
    main()
