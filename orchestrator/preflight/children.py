"""Child processes that may never answer: started, waited for until a deadline, left behind.

A process that waits in the kernel for a lost GPU or a file server cannot be killed, and a process
that waits for it would wait as long. So nobody here waits longer than the deadline.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

# For a process that was killed and can be.
_DIES_S = 1.0
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True, slots=True)
class Output:
    """How a command ended.

    Attributes:
        code: Its exit code, negative for a signal; None where it gave no answer in time.
        text: Standard output and error together.
    """

    code: int | None
    text: str


class Child:
    """A command that runs. Its input is ``text``."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, text: str = ""
    ) -> None:
        self._text = text
        self._process = subprocess.Popen(  # noqa: S603 (words, no shell)
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # its own children end with it
        )
        _running.add(self._process)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def finish(self, deadline: float) -> Output:
        """Return how it ended; ``deadline`` is in seconds of time.monotonic()."""
        left = max(deadline - time.monotonic(), 0.5)
        try:
            text, _ = self._process.communicate(self._text, timeout=left)
        except subprocess.TimeoutExpired:
            self._leave_behind()
            return Output(None, "")
        _running.discard(self._process)
        return Output(self._process.returncode, text)

    def _leave_behind(self) -> None:
        """Kill it, and see it off if it dies of that."""
        _kill(self._process)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DIES_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what it was to read is still there
                pipe.close() if pipe else None


def start(argv: Sequence[str]) -> Child | None:
    """Start a command; None where there is no such program."""
    try:
        return Child(argv)
    except OSError:
        return None


def start_module(name: str, *args: str, text: str = "") -> Child:
    """Start `python -m NAME ARGS` with the Python of this process."""
    return Child([sys.executable, "-m", name, *args], text=text)


def end_all() -> None:
    """Kill what still runs, and its children, without waiting."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _running.discard(process)
