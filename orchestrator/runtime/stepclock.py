"""How long the steps take that a script logs: saves, votes and evaluations are no part of them."""

import time
from collections.abc import Callable


class StepClock:
    """Adds up seconds of training between two takings."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None
        self._sum = 0.0

    def go(self) -> None:
        """Count from now on."""
        if self._since is None:
            self._since = self._now()

    def halt(self) -> None:
        """Count no more for now."""
        if self._since is not None:
            self._sum += self._now() - self._since
        self._since = None

    def restart(self) -> None:
        """Forget what was counted, and count from now on."""
        self._since, self._sum = self._now(), 0.0

    def take(self) -> float | None:
        """Return the seconds since the last taking, None where nothing was counted; go on."""
        if self._since is None and not self._sum:
            return None
        self.halt()
        total = self._sum
        self.restart()
        return total
