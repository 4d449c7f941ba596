"""Turns an exception in one rank into an error file and a quick end, instead of a hang."""

import contextlib
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from orchestrator.errors import FsdpqError
from orchestrator.runtime.fence import SupersededError
from orchestrator.runtime.reports import Outcome, write_error

if TYPE_CHECKING:
    from orchestrator.runtime.run import Run

_INTERRUPTED_EXIT = 130
_REPORT_S = 30.0


class guard(contextlib.ContextDecorator):
    """Guards a block or a function: whatever it raises is written down, then the process ends.

    The process ends at once, without destroying process groups: a rank that waits in there answers
    no flight-recorder request, and its peers wait for it until their time-out. BaseException is
    meant: DCP's CheckpointException is one. Exit code 0 by SystemExit passes through.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run

    def __enter__(self) -> "Run":
        return self._run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            return
        give_up(self._run, error, code=_exit_code(error))


def give_up(run: "Run", error: BaseException, *, code: int) -> NoReturn:
    """Write ``error`` down, then end this process with ``code``."""
    # A file system that hangs must not turn a failure into a hang of all ranks.
    timer = threading.Timer(_REPORT_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    _report(run, error)
    _flush()
    os._exit(code)


def _report(run: "Run", error: BaseException) -> None:
    traceback.print_exception(error)
    outcome: Outcome = "superseded" if isinstance(error, SupersededError) else "failed"
    # The disk may be what failed: then stderr has to do.
    with contextlib.suppress(OSError):
        write_error(run.env, error, step=run.step)
    with contextlib.suppress(OSError, FsdpqError):
        run.failed(outcome, reason=f"{type(error).__name__}: {error}")


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED_EXIT
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
