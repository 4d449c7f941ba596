"""Read logs and judge them: the effects of `fsdpq diagnose`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.fabric.clues import Clue, order
from orchestrator.fabric.collect import Collector
from orchestrator.fabric.diagnosis import Diagnosis
from orchestrator.fabric.exceptions import endings
from orchestrator.fabric.lines import Writer
from orchestrator.fabric.peers import named
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.reading import lines_before, stream, tail
from orchestrator.fabric.shares import Budget
from orchestrator.fabric.sources import Source
from orchestrator.fabric.verdict import judge

# Of a few files more of the end is looked at than of each of many.
_TAIL_BYTES = 4 << 20
_TAIL_OF_MANY = 256 << 10
_MANY = 8
# The order of what stands at the end of a file: after what stands before.
_AFTER = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read.

    Attributes:
        file: Bytes of a file, from its beginning; None for all of it.
        total: Bytes of all files; None for all.
    """

    file: int | None = None
    total: int | None = None


def examine(
    sources: Sequence[Source],
    promise: Promise | None,
    *,
    limits: Limits | None = None,
    more: Iterable[Clue] = (),
    well: bool = False,
    nodes: int | None = None,
) -> Diagnosis:
    """Return what is to be said of ``sources``. A file that cannot be read is passed over.

    Args:
        sources: The files.
        promise: What the site promises; None where that is not known.
        limits: How much to read; all of it, if left out.
        more: Errors that are known already.
        well: Whether what wrote them is known to have ended well, or to live.
        nodes: How many nodes there are, where that is known.
    """
    collector = Collector()
    bounds, budget = limits or Limits(), Budget()
    read = 0
    for source in sources:
        if bounds.total is not None and read >= bounds.total:
            break
        with suppress(OSError):
            read += _read(source, collector, bounds, budget)
    processes = collector.processes()
    told = collector.placed(processes)
    clues = named(order([*told, *_new(more, told)]), processes)
    return judge(processes, clues, promise, version=collector.version, well=well, nodes=nodes)


def _read(source: Source, collector: Collector, bounds: Limits, budget: Budget) -> int:
    file = str(source.path)
    writer = Writer(host=source.host, pid=source.pid, rank=source.rank)

    def take(text: str, number: int, whole: bool) -> None:
        collector.take(text, file=file, number=number, whole=whole, writer=writer)

    return stream(source.path, take, most=bounds.file, budget=budget)


def _new(more: Iterable[Clue], told: Iterable[Clue]) -> list[Clue]:
    """Return those of ``more`` that the files did not tell themselves."""
    known = {(clue.finding.kind, clue.finding.node) for clue in told}
    return [clue for clue in more if (clue.finding.kind, clue.finding.node) not in known]


def ends(sources: Sequence[Source]) -> list[Clue]:
    """Return what the ends of the files say of exceptions, and of Slurm."""
    size = _TAIL_BYTES if len(sources) <= _MANY else _TAIL_OF_MANY
    found: list[Clue] = []
    for source in sources:
        if source.traces:
            found += _end(source, size, place=len(found) + _AFTER)
    return found


def _end(source: Source, size: int, *, place: int) -> list[Clue]:
    text, start = tail(source.path, size)
    told = list(endings(text))
    before = lines_before(source.path, start) if told else 0
    return [
        Clue(
            finding=ending.finding,
            text=ending.text,
            file=str(source.path),
            number=before + ending.number,
            order=place + turn,
        )
        for turn, ending in enumerate(told)
    ]
