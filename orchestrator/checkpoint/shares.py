"""Which rank verifies which files of a checkpoint. Pure."""

import re
from collections.abc import Iterable

# DCP's name for the n-th file of a rank.
_SHARD = re.compile(r"__(\d+)_(\d+)\.distcp", re.ASCII)


def share_of(names: Iterable[str], *, rank: int, world_size: int) -> list[str]:
    """Return the files that ``rank`` verifies: about as many for each rank.

    With as many ranks as wrote the checkpoint, each one verifies what it wrote and will load, so
    that its node reads that from the shared file system once.

    >>> share_of([".metadata", "__0_0.distcp", "__1_0.distcp"], rank=1, world_size=2)
    ['__1_0.distcp', '.metadata']
    """
    ordered = sorted(names, key=_place)
    return ordered[len(ordered) * rank // world_size : len(ordered) * (rank + 1) // world_size]


def _place(name: str) -> tuple[bool, int, int, str]:
    found = _SHARD.fullmatch(name)
    return (found is None, int(found[1]), int(found[2]), "") if found else (True, 0, 0, name)
