"""How many lines are looked into, and which where there are too many. Pure.

To look into a line costs up to a hundred times what it costs to pass over it. So each byte that is
read pays for a little of that, and what most logs do not need is saved up: a training log is looked
into wherever it has something to say, and one that consists of nothing but errors or connections
costs a tenth of a second a MiB. Counted in lines, not by a clock, so the same log is always read in
the same way.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

# Microseconds that a line of each sort costs (tests/bench/RESULTS.md).
COSTS = {"good": 25, "plain": 25, "info": 18, "env": 18, "trace": 18, "warn": 70, "other": 50}
# Lines of one file; of connections with GPUDirect the first ones tell enough.
MOST = {**dict.fromkeys(COSTS, 20_000), "info": 50_000}
# What a byte pays, in microseconds, and what there is to begin with.
_A_BYTE = 50_000 / (1 << 20)
_AT_FIRST = 60_000.0


class Budget:
    """What all files of a diagnosis together may cost."""

    def __init__(self) -> None:
        self._left = _AT_FIRST

    def earn(self, size: int) -> None:
        """Take what ``size`` bytes pay."""
        self._left += size * _A_BYTE

    def spend(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return how many lines of each sort may be looked into, and pay for them.

        Where there is not enough for all, a sort of many lines leaves the others theirs.

        Args:
            wanted: How many there are of each sort.
        """
        given: dict[str, int] = {}
        by_cost = sorted(wanted, key=lambda sort: wanted[sort] * COSTS[sort])
        for place, sort in enumerate(by_cost):
            most = int(self._left / (len(by_cost) - place) / COSTS[sort])
            given[sort] = min(wanted[sort], most)
            self._left -= given[sort] * COSTS[sort]
        return given


def fair(items: Sequence[T], keys: Iterable[Hashable], most: int) -> list[T]:
    """Return ``most`` of ``items`` in their order: the first of each key, then the second, ...

    So what is said once is heard among what is said a thousand times.

    >>> fair("abacada", "abacada", 5)
    ['a', 'b', 'a', 'c', 'd']
    """
    if len(items) <= most:
        return list(items)
    heard: dict[Hashable, int] = {}
    turns = []
    for place, key in enumerate(keys):
        turn = heard[key] = heard.get(key, 0) + 1
        turns.append((turn, place))
    return [items[place] for place in sorted(place for _, place in sorted(turns)[:most])]
