"""Paths of the host that a container sees, as a job file and a site profile spell them. Pure.

Every runtime has separators of its own, and some hand the paths to a shell: pyxis writes them into
a script of enroot's. So there are no characters in a path that any of them takes for more than a
letter.
"""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

_JOB_ID = "${SLURM_JOB_ID}"
_PATH = re.compile(r"/[\w@%+=.~/-]*")
_ALLOWED = "letters, digits and _ @ % + = . ~ / -"


def mount(text: str) -> str:
    """Return HOST[:CONTAINER[:ro]] with all that it leaves out.

    >>> mount("/data"), mount("/data:/d:ro")
    ('/data:/data', '/data:/d:ro')

    Raises:
        ValueError: It is no such thing.
    """
    host, _, rest = text.partition(":")
    inside, _, flag = rest.partition(":")
    if flag not in ("", "ro") or text.endswith(":"):
        raise ValueError("write a mount as HOST, HOST:CONTAINER or HOST:CONTAINER:ro")
    for path in (host, inside or host):
        _check(path)
    return ":".join([host, inside or host, *([flag] if flag else [])])


def same_place(path: str) -> str:
    """Return the mount that shows ``path`` where it is.

    Raises:
        ValueError: No runtime can be told of such a path.
    """
    _check(path)
    return f"{path}:{path}"


def _check(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path of the host, or HOST:CONTAINER")
    if not _PATH.fullmatch(path.replace(_JOB_ID, "")):
        raise ValueError(
            f"only {_ALLOWED} (and {_JOB_ID}) can stand in a path of a mount: container runtimes"
            " take the rest for separators, or hand it to a shell"
        )


def inside(mounted: str) -> str:
    """Return where a settled mount appears in the container."""
    return mounted.split(":")[1]


def uncovered(paths: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return the outermost of ``paths`` that no mount in ``given`` shows where they are.

    >>> uncovered(["/a/runs/x", "/a/runs", "/b"], ["/b:/b"])
    ['/a/runs']
    """
    shown = [host for host, to, *_ in (one.split(":") for one in given) if host == to]
    left = [path for path in sorted(set(paths)) if not _below(path, shown)]
    return [path for path in left if not _below(path, [one for one in left if one != path])]


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


# As it was written; `mount` says what it means.
Mount = Annotated[str, AfterValidator(lambda text: mount(text) and text)]

__all__ = ["Mount", "inside", "mount", "same_place", "uncovered"]
