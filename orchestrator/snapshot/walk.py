"""Find files below a folder where git is not there to say which ones matter."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.errors import SpecError
from orchestrator.snapshot.patterns import fixed_part, matches

# Entries looked at before a folder counts as too large to be a program's.
MAX_SEEN = 50_000
_CODE = (".py",)
_CONFIG = (".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh")
_CONFIG_BYTES = 1 << 20
_NOT_CODE = frozenset({"__pycache__", "node_modules", "site-packages"})
_SECRET = re.compile(
    r"token|secret|passw|credential|api_?key|private_?key|service_?account", re.IGNORECASE
)


def program_files(root: Path) -> list[str]:
    """Return the Python and the small configuration files below ``root``, relative to it.

    Hidden folders, environments and runs are passed over, and so is what is called like a secret.

    Raises:
        SpecError: There is too much to look at.
    """
    return [name for name in _files(root, "", enter=_may_hold_code) if _is_program(root, name)]


def extra_files(root: Path, pattern: str) -> list[str]:
    """Return the files below ``root`` that ``pattern`` stands for, relative to it.

    Raises:
        SpecError: There is none, or too much to look at.
    """
    start = fixed_part(pattern)
    if os.path.islink(root / start) or os.path.isfile(root / start):  # noqa: PTH113, PTH114
        return [start]
    found = [name for name in _files(root, start, enter=_is_no_run) if matches(pattern, name)]
    if not found:
        raise SpecError(f"code.extras: nothing matches {pattern!r} in {root}")
    return found


def package_files(root: Path, package: str) -> list[str]:
    """Return the files of the Python package at ``root``/``package``, relative to ``root``."""
    return list(_files(root, package, enter=lambda folder: folder.name != "__pycache__"))


def _files(root: Path, start: str, *, enter: Callable[[Path], bool]) -> Iterator[str]:
    """Yield files and links below ``root``/``start``, relative to ``root``; follow no link."""
    seen = 0
    for folder, folders, files in os.walk(root / start):
        here = os.path.relpath(folder, root)
        seen += len(folders) + len(files)
        if seen > MAX_SEEN:
            raise SpecError(
                f"code: {root / start} holds more than {MAX_SEEN} files, too many to look through"
                " for the program's. Put the script into a folder or a git repository of its own,"
                " name smaller folders in code.extras, or run the live files with --live-code"
            )
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        for name in sorted(links + files):
            yield name if here == "." else f"{here}/{name}"
        folders[:] = sorted(n for n in folders if n not in links and enter(Path(folder, n)))


def _may_hold_code(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _NOT_CODE or not _is_no_run(folder):
        return False
    return not _there(folder / "pyvenv.cfg") and not _there(folder / "conda-meta")


def _is_no_run(folder: Path) -> bool:
    is_run = _there(folder / "plan.json") and _there(folder / "attempts")
    return folder.name != ".git" and not is_run


def _there(path: Path) -> bool:
    """Return whether there is such a file; in a folder of somebody else's there is none for us."""
    return os.path.exists(path)  # noqa: PTH110 (Path.exists raises where it may not look)


def _is_program(root: Path, name: str) -> bool:
    last = name.rpartition("/")[2]
    if last.startswith(".") or not os.access(root / name, os.R_OK):
        return False
    if last.endswith(_CODE):
        return True
    if os.path.islink(root / name) and os.path.isdir(root / name):  # noqa: PTH112, PTH114
        return True
    small = last.endswith(_CONFIG) and os.path.getsize(root / name) <= _CONFIG_BYTES  # noqa: PTH202
    return small and not _SECRET.search(last)
