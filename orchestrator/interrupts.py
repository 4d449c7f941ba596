"""SIGINT, SIGTERM and SIGHUP as one exception, so that whoever is ended can clean up first.

A terminal that goes away sends SIGHUP, and without this Python dies of it where it stands: what it
has started at Slurm stays. A second signal would break off the clean-up, so only the first counts.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal told this process to end.

    Attributes:
        signal: Which one.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"ended by {self.signal.name}")


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what a shell calls the end of a process that a signal ended; 130 for Ctrl-C."""
    return 128 + (interrupt.signal if isinstance(interrupt, Interrupted) else signal.SIGINT)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Let the first of the signals raise `Interrupted` in here, and those after it do nothing.

    Signals that are ignored already (nohup) stay so. Within another of these it changes nothing.
    """
    before: dict[signal.Signals, Any] = {}
    handle = _Once()
    try:
        for number in _SIGNALS:
            if _is_free(number):
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _is_free(number: signal.Signals) -> bool:
    """Return whether the default action would be taken, and this thread may change that."""
    if threading.current_thread() is not threading.main_thread():
        return False  # the main thread alone hears signals
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


class _Once:
    """Raises at its first call."""

    def __init__(self) -> None:
        self._called = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if not self._called:
            self._called = True
            raise Interrupted(number)
