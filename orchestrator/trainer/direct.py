"""A new file that is written past the page cache, so that training next to it is not held up.

What goes through the cache is written back in bursts, by the kernel and by `fsync`. On a machine
with two H200 a step of 0.31 s took up to 0.65 s meanwhile, and steps during a save were 18 to 25 %
slower; past the cache they were 1 to 2 % slower and the save took as long (tests/gpu/RESULTS.md).
"""

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Protocol

_BUFFER = 4 << 20
# What the start, the length and the place in memory of a write must be multiples of: no disk has
# larger sectors, and no file system with a larger demand is known.
_UNIT = 4096


class NewFile(Protocol):
    """What is written to. `fileno` is for making it durable."""

    def write(self, data: memoryview, /) -> int:
        """Write all of ``data``."""
        ...

    def flush(self) -> None:
        """Hand everything to the operating system."""
        ...

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_new(path: Path, *, direct: bool) -> NewFile:
    """Return a new file, past the page cache if ``direct`` and the file system can do it.

    Raises:
        FileExistsError: It is there.
        OSError: It cannot be made.
    """
    if direct:
        try:
            return DirectFile(path)
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # made before the kernel found that it cannot be
    return path.open("xb", buffering=1 << 20)


class DirectFile:
    """A new file past the page cache. What is written is gathered in whole parts of 4 MiB."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o666)
        self._direct = True
        self._buffer = mmap.mmap(-1, _BUFFER)  # begins with a page
        self._filled = 0

    def write(self, data: memoryview, /) -> int:
        """Write all of ``data``."""
        done = 0
        while done < len(data):
            part = data[done : done + _BUFFER - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            done += len(part)
            if self._filled == _BUFFER:
                self._empty()
        return done

    def flush(self) -> None:
        """Write what is left, which is no whole part, through the cache."""
        if self._filled:
            self._through_the_cache()
            self._empty()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the file. What was not flushed is lost."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._buffer.close()
            os.close(fd)

    def _empty(self) -> None:
        done = 0
        with memoryview(self._buffer) as whole:
            while done < self._filled:
                with whole[done : self._filled] as left:
                    done += self._some(left)
        self._filled = 0

    def _some(self, left: memoryview) -> int:
        try:
            written = os.write(self._fd, left)
        except OSError as problem:
            # Some file systems open such a file and only then refuse to write to it.
            if problem.errno != errno.EINVAL or not self._direct:
                raise
            self._through_the_cache()
            return 0
        if written % _UNIT:  # a full disk, for example; the next one would be refused for its place
            self._through_the_cache()
        return written

    def _through_the_cache(self) -> None:
        if self._direct:
            self._direct = False
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
