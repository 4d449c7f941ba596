"""An end to what may hang for ever: a file system that does not answer cannot be interrupted."""

import contextlib
import faulthandler
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import RunError
from orchestrator.runtime.guard import give_up

if TYPE_CHECKING:
    from orchestrator.runtime.run import Run

_EXIT = 1


@contextlib.contextmanager
def deadline(run: "Run", what: str, *, seconds: float) -> Iterator[None]:
    """End this process, with an error file and its stacks in the log, if the block takes longer.

    Args:
        run: The worker's run.
        what: What the block does, for the message.
        seconds: How long it may take.
    """
    timer = threading.Timer(seconds, _end, (run, f"{what} took longer than {seconds:g} s"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(run: "Run", why: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # stderr may be gone
        faulthandler.dump_traceback()
    give_up(run, RunError(why), code=_EXIT)
