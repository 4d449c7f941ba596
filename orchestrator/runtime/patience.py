"""A file system that is away comes back: what could not be read is looked at again for a while."""

import sys
import time
from collections.abc import Callable

from orchestrator.errors import UnreadError

# A stale handle or a server that fails over takes seconds; a restart takes longer, and a run has
# only so many of them.
PATIENCE_S = 120.0
_PAUSE_S = 5.0


def never(_: UnreadError) -> bool:
    """Look no more."""
    return False


class Patience:
    """Says whether to look again, after a pause: for ``seconds``, and not where ``hurry`` is."""

    def __init__(self, seconds: float, hurry: Callable[[], bool]) -> None:
        self._seconds, self._hurry = seconds, hurry
        self._until: float | None = None

    def __call__(self, problem: UnreadError) -> bool:
        """Return whether to look again; says once, on standard error, what it waits for."""
        now = time.monotonic()
        until = now + self._seconds if self._until is None else self._until
        if self._hurry() or now + _PAUSE_S > until:
            return False
        if self._until is None:
            told = f"fsdpq: {problem}. It is looked at again for {self._seconds:g} s"
            print(told, file=sys.stderr, flush=True)
        self._until = until
        time.sleep(_PAUSE_S)
        return True
