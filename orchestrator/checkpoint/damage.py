"""What is wrong with the files of a checkpoint, compared with its manifest.

That a file is damaged and that it could not be read are two findings. A checkpoint is set aside for
the first alone: it may be sound where the file system was away, or where a mode was changed.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.hashing import HASH_THREADS, sha256_of
from orchestrator.checkpoint.manifest import FileEntry, Manifest
from orchestrator.errors import UnreadError

# These say something of the file itself.
_OF_THE_FILE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
# Which SHA-256 a file is said to have, in hexadecimal digits, if anything is said of it.
Hint = Callable[[Path], str | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a checkpoint does not count.

    Attributes:
        reason: In words, with the name of the file.
        unread: It could not be looked at, so that it may well be sound.
        unsure: A bad disk says the same as a file system that was away for a while (EIO: Lustre's
            word to a client that it has put out, NFS's after a soft time-out). Where an older
            checkpoint reads, it was the disk.
    """

    reason: str
    unread: bool = False
    unsure: bool = False

    def __str__(self) -> str:
        return self.reason


def unreadable(name: str, problem: OSError) -> Fault:
    """Return what it means that ``name`` could not be read."""
    reason = f"{name} cannot be read: {problem.strerror}".lstrip()
    unsure = problem.errno == errno.EIO
    return Fault(reason, unread=not unsure and problem.errno not in _OF_THE_FILE, unsure=unsure)


def on_this_node(reason: str, rank: int) -> str:
    """Return ``reason`` with who found it: what one node cannot read, others may."""
    return f"{reason} (rank {rank} on {os.uname().nodename})"


def insist(path: Path, fault: Fault) -> None:
    """Return if the checkpoint at ``path`` may be set aside for ``fault``.

    Raises:
        UnreadError: It may not.
    """
    if fault.unread:
        raise UnreadError(
            f"{path}: {fault}. It may be sound, so it is not set aside and the run does not"
            " fall back to an older one; see that the nodes can read it, or move it away"
        )


def no_hint(_: Path) -> None:
    """Say nothing."""


def damage(
    directory: Path,
    manifest: Manifest,
    *,
    hashes: bool,
    names: Sequence[str] | None = None,
    hint: Hint = no_hint,
) -> Fault | None:
    """Return what is wrong with the files of ``manifest``, None if nothing is.

    Args:
        directory: Where the files are.
        manifest: What they should be.
        hashes: Read them whole and compare the hashes too.
        names: Look only at these; all of them if None.
        hint: Of which files the hash is known. Where it is not the right one, the file is hashed.
    """
    ordered = sorted(manifest.files if names is None else names)
    for name in ordered:
        if fault := _wrong_size(directory / name, name, manifest.files[name]):
            return fault
    if not hashes:
        return None
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        checks = pool.map(
            lambda name: _wrong_hash(directory / name, name, manifest.files[name], hint), ordered
        )
        return next((fault for fault in checks if fault), None)


def _wrong_size(path: Path, name: str, entry: FileEntry) -> Fault | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return Fault(f"{name} is missing")
    except OSError as problem:
        return unreadable(name, problem)
    if not stat.S_ISREG(found.st_mode):
        return Fault(f"{name} is not a file")
    if found.st_size != entry.size:
        return Fault(f"{name} has {found.st_size} bytes instead of {entry.size}")
    return None


def _wrong_hash(path: Path, name: str, entry: FileEntry, hint: Hint) -> Fault | None:
    try:
        if hint(path) == entry.sha256 or sha256_of(path) == entry.sha256:
            return None
    except OSError as problem:
        return unreadable(name, problem)
    return Fault(f"{name} is not what was written: its hash differs")
