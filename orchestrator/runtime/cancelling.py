"""The cancel mark as a notice, for a signal may come too early to be heard."""

import time

from orchestrator.runtime.environment import Environment
from orchestrator.runtime.notices import Notice
from orchestrator.runtime.seldom import Seldom


class CancelMark:
    """Looks for the mark that `fsdpq cancel` leaves in the run directory."""

    def __init__(self, env: Environment) -> None:
        self._mark = env.run.cancelled
        self._seldom = Seldom(env)
        self._found: Notice | None = None

    def look(self) -> Notice | None:
        """Return the notice on rank 0, once a look has found the mark; None elsewhere."""
        if self._found is None and self._seldom.due() and self._mark.exists():
            self._found = Notice("CANCEL", time.time(), "mark")
        return self._found
