"""Copy a program's files so that nothing that happens to the originals changes them."""

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.snapshot.tree import Entry

_TRIES = 3
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_BLOCK = 1 << 20


def copy(root: Path, entries: Mapping[str, Entry], to: Path) -> str:
    """Copy ``entries`` below ``root`` to ``to`` and return a hash of names, modes and contents.

    Files are copies of their own (a hard link would change with the original) and read-only;
    folders stay writable, for Python's caches and for whoever removes the run.

    Raises:
        RunError: A file cannot be read, or does not stay as it is for the time of a copy.
    """
    to.mkdir(mode=0o700)
    made = {to}
    total = hashlib.sha256()
    for name in sorted(entries):
        target = to / name
        _make_folder(target.parent, made)
        said = _copy_one(root / name, target, entries[name])
        total.update(os.fsencode(name) + b"\0" + said.encode() + b"\0")
    return total.hexdigest()


def _make_folder(folder: Path, made: set[Path]) -> None:
    if folder not in made:
        _make_folder(folder.parent, made)
        folder.mkdir(mode=0o700)
        made.add(folder)


def _copy_one(source: Path, target: Path, entry: Entry) -> str:
    """Copy a file or link and return what says that two are the same."""
    if entry.target is not None:
        target.symlink_to(entry.target)
        return f"link {entry.target!a}"
    try:
        for _ in range(_TRIES):
            if said := _copy_file(source, target):
                return said
            target.unlink()
    except OSError as problem:
        if problem.errno in _NO_SPACE or problem.filename not in (str(source), None):
            raise
        raise RunError(
            f"{source}: cannot be kept: {problem.strerror}; submit again, or leave it out with"
            " `code: {exclude: [...]}`"
        ) from None
    raise RunError(
        f"{source}: changes while it is copied; submit again when nothing writes to it, or leave it"
        " out with `code: {exclude: [...]}`"
    )


def _copy_file(source: Path, target: Path) -> str:
    """Copy a file; return its mode and hash, or "" if it changed in the meantime."""
    with source.open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        mode = 0o500 if before.st_mode & 0o100 else 0o400
        found = hashlib.sha256()
        with target.open("xb", buffering=0) as copied:
            os.fchmod(copied.fileno(), mode)
            size = 0
            while (block := file.read(_BLOCK)) and size <= before.st_size:
                size += len(block)
                found.update(block)
                _write(copied.fileno(), block)
            os.utime(copied.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
        after = os.fstat(file.fileno())
    same = (size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return f"{mode:o} {found.hexdigest()}" if same else ""


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]
