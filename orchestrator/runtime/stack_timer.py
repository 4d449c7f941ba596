"""A timer that writes the stacks of all Python threads to a file when nobody puts it off.

faulthandler's timer is a thread in C that needs no interpreter lock, so it goes off also where a
thread never gives that up. There is one such timer in a process: a script that uses
`faulthandler.dump_traceback_later` itself takes it away, until it is set the next time.
"""

import contextlib
import faulthandler
import os
import threading
from pathlib import Path

_LEAST_S = 0.001


class StackTimer:
    """The timer, and the file it writes to. Setting it costs about 0.1 ms (a thread is started)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Opened now: it must not need memory, names or a lock when it goes off.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._delay_s: float | None = None
        # A fork takes the timer's lock along and not its thread: a child that ends as Python
        # programs do would wait for that thread for ever (CPython 3.11 to 3.13). So there is no
        # timer while a process is forked.
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_in_parent,
            after_in_child=self._after_in_child,
        )

    def set(self, delay_s: float) -> None:
        """Write the stacks in ``delay_s`` seconds; what an earlier setting wrote is dropped."""
        with self._lock:
            faulthandler.cancel_dump_traceback_later()
            if os.fstat(self._file).st_size:
                os.ftruncate(self._file, 0)
            self._delay_s = max(delay_s, _LEAST_S)
            faulthandler.dump_traceback_later(self._delay_s, file=self._file)

    def stop(self) -> None:
        """Write nothing any more."""
        with self._lock:
            self._delay_s = None
            faulthandler.cancel_dump_traceback_later()

    def _before_fork(self) -> None:
        self._lock.acquire()
        faulthandler.cancel_dump_traceback_later()

    def _after_in_parent(self) -> None:
        # A fork during the last seconds of a delay starts it anew; the next beat sets it right.
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            if self._delay_s is not None:
                faulthandler.dump_traceback_later(self._delay_s, file=self._file)
        self._lock.release()

    def _after_in_child(self) -> None:
        self._delay_s = None
        self._lock.release()
