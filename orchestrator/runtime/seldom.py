"""What rank 0 does at most once a second: a shared file system is asked or told something."""

import time

from orchestrator.runtime.environment import Environment

_EVERY_S = 1.0


class Seldom:
    """Says when it is time again. Never, on the other ranks."""

    def __init__(self, env: Environment) -> None:
        self._lead = env.rank == 0
        self._at = float("-inf")

    def due(self) -> bool:
        """Return whether it is to be done now; then not within the next second."""
        now = time.monotonic()
        if not self._lead or now - self._at < _EVERY_S:
            return False
        self._at = now
        return True
