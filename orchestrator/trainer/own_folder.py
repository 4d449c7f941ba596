"""Folders that nobody but this user can have made or can look into.

They are opened one below the other, by descriptors and without following links: in /dev/shm
anybody can make names, and what was looked at must be what is used.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a named pipe would be waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RefusedError(OSError):
    """A folder is not this user's own."""


@contextlib.contextmanager
def outer_folder(path: Path) -> Iterator[int]:
    """Give a descriptor of a folder that this user or root made; others may write into it.

    Raises:
        OSError: It is not there, is a link, or is somebody else's.
    """
    with _opened(path) as (folder, found):
        if found.st_uid not in (0, os.getuid()):
            raise RefusedError(f"{path} belongs to user {found.st_uid}")
        yield folder


@contextlib.contextmanager
def own_folder(name: str, *, within: int) -> Iterator[int]:
    """Give a descriptor of a folder that is this user's alone.

    Raises:
        OSError: It is not there, is a link, is somebody else's, or is open to others.
    """
    with _opened(name, within=within) as (folder, found):
        if found.st_uid != os.getuid():
            raise RefusedError(f"{name} belongs to user {found.st_uid}")
        if found.st_mode & 0o077:
            raise RefusedError(f"{name} is open to others (mode {found.st_mode & 0o777:o})")
        yield folder


def make(name: str, *, within: int) -> bool:
    """Make a folder unless it is there; return whether it was made."""
    try:
        os.mkdir(name, 0o700, dir_fd=within)
    except FileExistsError:  # another rank's, or an earlier save's
        return False
    return True


def names_in(folder: int) -> list[str]:
    """Return what lies in the folder."""
    return os.listdir(folder)


def remove(names: Iterable[str], *, within: int) -> None:
    """Remove folders as far as that goes. Links are not followed."""
    for name in names:
        shutil.rmtree(name, ignore_errors=True, dir_fd=within)


def new_file(name: str, *, within: int) -> IO[bytes]:
    """Return a new file without a buffer.

    Raises:
        OSError: There is something of that name, or it cannot be made.
    """
    return os.fdopen(os.open(name, _NEW, 0o600, dir_fd=within), "wb", buffering=0)


def open_file(name: str, *, within: int) -> IO[bytes]:
    """Return a file of this user's, open for reading.

    Raises:
        OSError: There is none, it is a link or no file, or is somebody else's.
    """
    file = os.fdopen(os.open(name, _READ, dir_fd=within), "rb")
    if _is_own_file(os.fstat(file.fileno())):
        return file
    file.close()
    raise RefusedError(f"{name} is not a file of this user's")


def size_of(name: str, *, within: int) -> int | None:
    """Return the bytes of a file of this user's, None where there is none."""
    try:
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
    except OSError:
        return None
    return found.st_size if _is_own_file(found) else None


@contextlib.contextmanager
def _opened(path: Path | str, *, within: int | None = None) -> Iterator[tuple[int, os.stat_result]]:
    folder = os.open(path, _FOLDER, dir_fd=within)
    try:
        yield folder, os.fstat(folder)
    finally:
        os.close(folder)


def _is_own_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
