"""The two phases of the bandwidth sweep: all ranks together, then the nodes pair by pair."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from orchestrator.bandwidth.finding import gbs_text, size_text
from orchestrator.bandwidth.formulas import COLLECTIVES
from orchestrator.bandwidth.record import Measurement, Pair, Record
from orchestrator.bandwidth.tournament import Pairs, chosen_rounds
from orchestrator.checkpoint.durable import write_text
from orchestrator.preflight.measure import Buffers, Meter

# Of the partners of a node among a thousand, the seventeenth tells nothing new about the node.
MOST_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank runs."""

    rank: int
    local_rank: int
    ranks: int
    local_ranks: int

    @classmethod
    def here(cls) -> "Place":
        """Return what the environment says.

        Raises:
            KeyError: A variable that torchrun sets is missing.
        """
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return self.rank // self.local_ranks

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.ranks // self.local_ranks


class Board:
    """The record so far, which rank 0 alone fills."""

    def __init__(self, path: Path | None, record: Record) -> None:
        self._path = path
        self.record = record

    def add(self, *measured: Measurement, line: str = "", **changes: object) -> None:
        """Add to the record and publish it; do nothing on other ranks."""
        if self._path is None:
            return
        added = (*self.record.measurements, *measured)
        self.record = replace(self.record, measurements=added, **changes)  # type: ignore[arg-type]
        with suppress(OSError):  # a full disk is for the training to complain of
            write_text(self._path, self.text(), durable=False)
        if line:
            print(f"fsdpq: {line}", flush=True)

    def note(self, text: str) -> None:
        """Add a note."""
        self.add(notes=(*self.record.notes, text), line=text)

    def text(self) -> str:
        """Return the record as JSON."""
        return json.dumps(self.record.to_json()) + "\n"


class Clock:
    """What is left of the budget, the same on all ranks: they ask together."""

    def __init__(self, everybody: Meter, budget_s: float) -> None:
        self._everybody = everybody
        self._until = time.monotonic() + budget_s

    def left_s(self) -> float:
        """Return the seconds that are left on the rank that has the least."""
        return -self._everybody.most(time.monotonic() - self._until)


def together(
    everybody: Meter, sizes: Sequence[int], board: Board, clock: Clock, *, spare_s: float
) -> int:
    """Measure all ranks together, size after size; return the last size that was measured.

    Args:
        everybody: All ranks.
        sizes: In bytes, ascending.
        board: Where the figures go.
        clock: Of the whole sweep.
        spare_s: What is to be left of it for the pairs.
    """
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        before_s = clock.left_s()
        found = [everybody.measure(collective, size) for collective in COLLECTIVES]
        board.add(*found, line=_line(found))
        left_s = clock.left_s()
        # The next size takes as many times longer as it is larger, at most.
        if following and (before_s - left_s) * following / size > left_s - spare_s:
            board.note(f"sizes above {size_text(size)} are left out: the time did not allow them")
            return size
    return sizes[-1]


def _line(found: Sequence[Measurement]) -> str:
    said = ", ".join(f"{m.collective} {gbs_text(m.bus_gbs)} GB/s" for m in found)
    return f"{size_text(found[0].size)}: {said} (bus bandwidth)"


def only_pair(board: Board) -> None:
    """Take what two nodes reached for the figure of their pair."""
    largest = [m for m in board.record.measurements if m.collective == "all_reduce"][-1:]
    for found in largest:
        a, b = board.record.nodes
        pair = Pair(a=a, b=b, bus_gbs=found.bus_gbs)
        board.add(pairs=(pair,), pair_size=found.size, rounds=1, rounds_total=1)


class Tournament:
    """The nodes pair by pair, all pairs of a round at the same time."""

    def __init__(self, place: Place, buffers: Buffers, store: Any, size: int) -> None:
        self._place = place
        self._buffers = buffers
        self._store = store
        self._size = size

    def play(self, everybody: Meter, names: Sequence[str], board: Board, clock: Clock) -> None:
        """Play as many rounds as the time allows."""
        planned = chosen_rounds(self._place.nodes, most=MOST_ROUNDS)
        total = self._place.nodes - 1 + self._place.nodes % 2
        board.add(pair_size=self._size, rounds_total=total)
        for number, pairs in enumerate(planned):
            before_s = clock.left_s()
            self._round(number, pairs, everybody)
            left_s = clock.left_s()
            if self._place.rank == 0:
                found = self._results(number, pairs, names)
                done = f"pairs of nodes: round {number + 1} of {len(planned)}"
                board.add(pairs=(*board.record.pairs, *found), rounds=number + 1, line=done)
            if before_s - left_s > left_s and number + 1 < len(planned):
                board.note(f"{number + 1} of {total} rounds of pairs: the time allowed no more")
                return
        if len(planned) < total:
            board.note(f"{len(planned)} of {total} rounds of pairs: enough to tell who is slow")

    def _round(self, number: int, pairs: Pairs, everybody: Meter) -> None:
        """Measure this rank's pair of the round, if it has one."""
        pair = next((pair for pair in pairs if self._place.node in pair), None)
        local = self._place.local_ranks
        nodes = pair or (self._place.node,)
        members = [node * local + i for node in nodes for i in range(local)]
        # Else each group would be made by all ranks: thousands of them at a few hundred nodes. Who
        # has no pair makes one too, for torch 2.14 names a group by how many its ranks made before.
        group = dist.new_group(members, use_local_synchronization=True)
        if pair is None:
            everybody.most(0.0)
        else:
            self._pair(number, pair, members[0], group, everybody)
        dist.destroy_process_group(group)

    def _pair(
        self, number: int, pair: tuple[int, int], first: int, group: Any, everybody: Meter
    ) -> None:
        meter = Meter(self._buffers, group)
        call = meter.call("all_reduce", self._size)
        roughly = meter.warm_up(call)
        everybody.most(0.0)  # all pairs start at the same time
        measured = meter.measured("all_reduce", self._size, meter.seconds(call, roughly=roughly))
        if self._place.rank == first:
            self._store.set(f"pair {number} {pair[0]}", repr(measured.bus_gbs))

    def _results(self, number: int, pairs: Pairs, names: Sequence[str]) -> list[Pair]:
        return [
            Pair(a=names[a], b=names[b], bus_gbs=float(self._store.get(f"pair {number} {a}")))
            for a, b in pairs
        ]
