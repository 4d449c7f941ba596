"""Read logs of any size in bounded memory: blocks of bytes, and a cheap look before the regexes.

Nearly all of a training log is no line of NCCL's, and nearly all of NCCL's own lines say nothing
that is asked here. So blocks without a word of interest are passed over by one search each, and of
the other lines only the few that begin as those of interest do become text; of a block that has
nothing else, no more than there is time for (`orchestrator.fabric.shares`).
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from orchestrator.fabric.lines import LONGEST
from orchestrator.fabric.shares import MOST, Budget, fair

BLOCK_BYTES = 1 << 20
# A line is looked at from so many bytes before the word that was found in it: what comes before
# may be a progress bar of any length.
_BEFORE = 1024
# What torch, libfabric and the kernel say without NCCL's name in the line.
_OTHERS = (b"NET/OFI", b"fi_getinfo", b"NVRM", b"ncclRemoteError", b"socketProgress")
# Words of interest that are looked for in one block: lines of NCCL's have more than 50 bytes.
_MOST_WORDS = 20_000
# By what lines of one sort are told apart: which ranks are connected, or the words that are said.
_BEFORE_VIA, _WORDING = 24, 96
# Words that are searched for, and how a line goes on after them that says something, by its sort:
# connections to other nodes, and what NCCL says besides. Two searches, each for a fixed word, cost
# less than one for both.
_SEARCHES = (
    (
        rb" via NET/",
        {"good": rb"(?=[^\n]{1,64}/GDRDMA)", "plain": rb"(?![^\n]{1,64}/GDRDMA)"},
    ),
    (
        rb"NCCL",
        {
            "info": rb" INFO (?:NET/|Using net|Assigned N|Initialized N|Boot|comm |ncclComm|GPU D)",
            "env": rb" INFO NCCL",
            "trace": rb" TRACE (?=[^\n]{0,64}GPU Direct)",
            "warn": rb" WARN ",
            "other": rb"(?! INFO | TRACE | WARN )",
        },
    ),
)

Take = Callable[[str, int, bool], None]


def stream(path: Path, take: Take, *, most: int | None = None, budget: Budget | None = None) -> int:
    """Give the lines of interest in a file to ``take`` as (text, number, whole).

    Args:
        path: The file.
        take: Called with each line, its number from 1, and whether it is known to end there.
        most: Bytes to read from its beginning; None for all of it.
        budget: How many lines to look into, over several files; of this one alone if None.

    Returns:
        The bytes that were read.

    Raises:
        OSError: It cannot be read.
    """
    reader = _Reader(take, budget or Budget())
    read, carry = 0, b""
    with path.open("rb", buffering=0) as file:
        # A log may grow faster than it is read. What tells no size is read to its end.
        sizes = (os.fstat(file.fileno()).st_size or None, most)
        end = min((size for size in sizes if size is not None), default=None)
        while end is None or read < end:
            block = file.read(BLOCK_BYTES)
            if not block:
                break
            read += len(block)
            carry = reader.block(carry + block)
    reader.rest(carry)
    return read


class _Reader:
    def __init__(self, take: Take, budget: Budget) -> None:
        self._take = take
        self._budget = budget
        self._lines = 0
        self._heard = dict.fromkeys(MOST, 0)
        self._wanted = _patterns(MOST)

    def block(self, data: bytes) -> bytes:
        """Look at the whole lines in ``data``; return what is left of the last one."""
        end = data.rfind(b"\n") + 1
        if end:
            self._look(data, end, whole=True)
        left = data[end:]
        if len(left) <= LONGEST + _BEFORE:
            return left
        # A line that does not end: what has passed is looked at, its last bytes once more.
        keep = len(left) - LONGEST
        self._look(left, keep, whole=False)
        return left[keep:]

    def rest(self, data: bytes) -> None:
        """Look at a last line without an end."""
        self._look(data, len(data), whole=False)

    def _look(self, data: bytes, end: int, *, whole: bool) -> None:
        stop = counted = 0
        for at, sort in self._chosen(data, end):
            # A line is taken once, whatever else is in it.
            if at < stop or self._heard[sort] >= MOST[sort]:
                continue
            self._count(sort)
            start, stop = _line(data, at, end)
            self._lines += data.count(b"\n", counted, start)
            counted = start
            text = data[start:stop].decode("utf-8", "replace")
            self._take(text, self._lines + 1, whole or stop < end)
        self._lines += data.count(b"\n", counted, end)

    def _count(self, sort: str) -> None:
        """Count a line; what there was enough of is not looked for any more."""
        self._heard[sort] += 1
        if self._heard[sort] == MOST[sort]:
            self._wanted = _patterns([s for s in MOST if self._heard[s] < MOST[s]])

    def _chosen(self, data: bytes, end: int) -> list[tuple[int, str]]:
        """Return where lines to look into have their words of interest, in order, and their sort.

        Of a sort that has too many lines those come first that say something new.
        """
        places = self._places(data, end)
        self._budget.earn(end)
        given = self._budget.spend({sort: len(at) for sort, at in places.items()})
        chosen: list[tuple[int, str]] = []
        for sort, found in places.items():
            keys = (_key(data, at, sort) for at in found)
            chosen += [(at, sort) for at in fair(found, keys, given[sort])]
        return sorted(chosen)

    def _places(self, data: bytes, end: int) -> dict[str, list[int]]:
        """Return where words of interest stand, by the sort of line that is."""
        found: dict[str, list[int]] = {}
        for pattern in self._wanted:
            for match in islice(pattern.finditer(data, 0, end), _MOST_WORDS):
                found.setdefault(match.lastgroup or "other", []).append(match.start())
        for word in _OTHERS if self._heard["other"] < MOST["other"] else ():
            found.setdefault("other", []).extend(islice(_each(data, word, end), _MOST_WORDS))
        return {sort: sorted(places) for sort, places in found.items()}


def _key(data: bytes, at: int, sort: str) -> bytes:
    """Return what tells a line apart from others of its sort."""
    if sort in ("good", "plain"):
        return data[max(0, at - _BEFORE_VIA) : at]
    return data[at : at + _WORDING].partition(b"\n")[0].translate(None, b"0123456789")


def _patterns(sorts: Collection[str]) -> list[re.Pattern[bytes]]:
    """Return what finds lines of these sorts."""
    found = []
    for word, table in _SEARCHES:
        ways = [b"(?P<%b>%b)" % (s.encode(), way) for s, way in table.items() if s in sorts]
        if ways:
            found.append(re.compile(word + b"(?:" + b"|".join(ways) + b")"))
    return found


def _each(data: bytes, word: bytes, end: int) -> Iterator[int]:
    at = data.find(word, 0, end)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word), end)


def _line(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the line around ``at`` begins and ends, at most so far away.

    A carriage return begins a line too: progress bars do without the other.
    """
    lowest = max(0, at - _BEFORE)
    start = max(data.rfind(b"\n", lowest, at), data.rfind(b"\r", lowest, at), lowest - 1) + 1
    highest = min(end, at + LONGEST)
    stop = data.find(b"\n", at, highest)
    return start, stop if stop >= 0 else highest


def tail(path: Path, size: int) -> tuple[str, int]:
    """Return about the last ``size`` bytes of a file as text, and where they begin.

    They begin with a line.
    """
    with suppress(OSError), path.open("rb") as file:
        length = file.seek(0, 2)
        start = file.seek(max(0, length - size))
        data = file.read(size)
        if start:
            skipped = data.find(b"\n") + 1
            start, data = start + skipped, data[skipped:]
        return data.decode("utf-8", "replace").replace("\x00", ""), start
    return "", 0


def lines_before(path: Path, end: int) -> int:
    """Return how many lines end in the first ``end`` bytes of a file."""
    count = 0
    with suppress(OSError), path.open("rb", buffering=0) as file:
        while end > 0 and (block := file.read(min(end, BLOCK_BYTES))):
            count += block.count(b"\n")
            end -= len(block)
    return count


def number_of(path: Path, line: str, *, most: int) -> int:
    """Return the number of the one line of a file that has ``line`` in it.

    Args:
        path: The file.
        line: What to look for.
        most: Bytes to look at; a larger file is not searched.

    Returns:
        Its number from 1; 0 where there is none or several, or where that would take long.
    """
    sought = line.encode("utf-8", "replace")
    with suppress(OSError):
        if sought and path.is_file() and path.stat().st_size <= most:
            data = path.read_bytes()
            if data.count(sought) == 1:
                return data.count(b"\n", 0, data.find(sought)) + 1
    return 0
