"""The agreement of a single process with itself, for scripts that have one rank and no torch."""

from typing import Any, Protocol


class Agreement(Protocol):
    """What ranks need to agree on things. See `collective.Ranks` for the torch one."""

    @property
    def rank(self) -> int:
        """This rank's number."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        """Return the largest of each value over all ranks."""

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on all ranks."""

    def gather(self, value: Any) -> list[Any]:
        """Return each rank's value on rank 0, elsewhere an empty list."""


class Alone:
    """One rank, which agrees with itself."""

    rank = 0
    world_size = 1

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        """Return the values."""
        return values

    def broadcast(self, value: Any = None) -> Any:
        """Return the value."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the value, in a list."""
        return [value]
