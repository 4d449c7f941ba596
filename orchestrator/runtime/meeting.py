"""The agreement of ranks, with the time spent in it told to the node's monitor.

The runtime waits for other ranks nowhere else: a rank whose stack ends here waits for somebody.
"""

from typing import Any

from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.pulse import Pulse


class Meeting:
    """An agreement that says when it waits. An `Agreement` itself."""

    def __init__(self, ranks: Agreement, pulse: Pulse) -> None:
        self._ranks = ranks
        self._pulse = pulse

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._ranks.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._ranks.world_size

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        """Return the largest of each value over all ranks."""
        with self._pulse.waiting():
            return self._ranks.maximum(values, timeout_s=timeout_s)

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on all ranks."""
        with self._pulse.waiting():
            return self._ranks.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Return each rank's value on rank 0, elsewhere an empty list."""
        with self._pulse.waiting():
            return self._ranks.gather(value)
