"""A directory that is there whole or not at all."""

import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.checkpoint.durable import sync_directory
from orchestrator.errors import RunError

# Tells an export from what must not be deleted, and where it came from.
MARK = "fsdpq_export.json"
# What rename(2) says of a directory whose new name is taken; an empty directory it replaces.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def new_folder(target: Path, *, force: bool, needed: int) -> Iterator[Path]:
    """Yield a directory beside ``target`` that takes its place at the end, unless that fails.

    Args:
        target: What it is to be called.
        force: Replace an earlier export of that name.
        needed: How many bytes will be written.

    Raises:
        RunError: The target is in the way, there is no room, or it cannot be written there.
        OSError: The file system refuses something else.
    """
    check_target(target, force=force)
    with _told(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        _check_room(target, needed)
        draft = target.with_name(_name(target, "partial"))
        draft.mkdir()
        try:
            yield draft
            _sync(draft)
            _put(draft, target, force=force)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise RunError(
            f"{target.parent}: the export takes {needed / 2**30:.2f} GiB, and there are"
            f" {free / 2**30:.2f} GiB free"
        )


@contextmanager
def _told(target: Path) -> Iterator[None]:
    """Say of what cannot be written in here that it is the export, and what to do."""
    try:
        yield
    except OSError as problem:
        beside = str(problem.filename or "").startswith(str(target.parent))
        if problem.errno in _FULL:
            advice = "make room there"
        elif problem.errno in _REFUSED and beside:
            advice = "check its rights and that it is not mounted read-only"
        else:
            raise
        raise RunError(
            f"{target}: the export cannot be written: {problem.strerror}; {advice}, or name"
            " another directory. Nothing is left behind"
        ) from None


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that is in the way.

    Raises:
        RunError: It is there; with ``force``, it is there and no earlier export.
    """
    if not os.path.lexists(target):
        return
    if target.is_mount():
        raise RunError(f"{target} is where a file system is mounted; name a directory within it")
    if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
        return
    if not force:
        raise RunError(f"{target} is there already; name another directory, or add --force")
    if not (target / MARK).is_file() or target.is_symlink():
        raise RunError(
            f"{target} is no earlier export, and --force replaces nothing else; name another"
            " directory, or remove it yourself"
        )


def write_mark(folder: Path, facts: dict[str, object]) -> None:
    """Write where the export came from."""
    (folder / MARK).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _put(draft: Path, target: Path, *, force: bool) -> None:
    """Let ``draft`` take the place of ``target``; no moment shows a mixture of both.

    Raises:
        RunError: Something has come to be there meanwhile that is not to be replaced.
    """
    try:
        draft.rename(target)
    except OSError as problem:
        if problem.errno not in _TAKEN:
            raise
        check_target(target, force=force)
        _replace(draft, target)
    sync_directory(target.parent)


def _replace(draft: Path, target: Path) -> None:
    old = target.with_name(_name(target, "replaced"))
    target.rename(old)
    try:
        draft.rename(target)
    except BaseException:
        with suppress(OSError):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(draft: Path) -> None:
    for path in draft.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    sync_directory(draft)


def _name(target: Path, kind: str) -> str:
    return f".{target.name}.{kind}-{_place()}-{os.getpid()}-{secrets.token_hex(4)}"


def _place() -> str:
    """Return where a process id means this process: the host, and the namespace of process ids."""
    return f"{socket.gethostname()}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _sweep(target: Path) -> None:
    """Remove what a killed export of this host has left behind.

    The export that it had moved away is kept as long as there is no other.
    """
    kinds = "partial|replaced" if target.exists() else "partial"
    pattern = re.compile(
        rf"\.{re.escape(target.name)}\.(?:{kinds})-{re.escape(_place())}-(\d+)-[0-9a-f]+"
    )
    for path in target.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)
