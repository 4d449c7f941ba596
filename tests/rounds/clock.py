"""A clock that all processes of a round share and that the round can put forward.

It shows the machine's time plus an offset. So a wait of four minutes costs nothing, while what
happens within it still takes its own time. The file holds every offset with the time from which
it was in force, so that the times of files can be told by this clock as well.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

_real = time.time
_PAIR = struct.Struct("dd")


class Clock:
    """Seconds since 1970, as a round sees them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def forward(self, seconds: float) -> None:
        """Put it forward."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            entry = _PAIR.pack(_real(), _last(descriptor) + seconds)
            os.write(descriptor, entry)
        finally:
            os.close(descriptor)

    def offset(self) -> float:
        """How far ahead it is, in seconds."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            return _last(descriptor)
        finally:
            os.close(descriptor)

    def now(self) -> float:
        return _real() + self.offset()

    def shown_at(self, real: float) -> float:
        """What this clock showed when the machine's showed ``real``, such as a file's time."""
        with open(self._path, "rb") as file:  # noqa: PTH123 (pathlib is slow to import)
            entries: list[tuple[float, float]] = list(_PAIR.iter_unpack(file.read()))
        passed = [offset for since, offset in entries if since <= real]
        return real + (passed[-1] if passed else entries[0][1])


def _last(descriptor: int) -> float:
    """The offset in force."""
    size = os.fstat(descriptor).st_size
    if size < _PAIR.size:
        return 0.0
    _, offset = _PAIR.unpack(os.pread(descriptor, _PAIR.size, size - _PAIR.size))
    return float(offset)
