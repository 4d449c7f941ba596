"""Read logs and judge them: the effects of `fsdpq diagnose`."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.fabric.clues import Clue, order
from orchestrator.fabric.collect import Collector
from orchestrator.fabric.exceptions import endings
from orchestrator.fabric.lines import Writer
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.reading import stream, tail
from orchestrator.fabric.sources import Source
from orchestrator.fabric.verdict import Diagnosis, judge

# Of a few files more of the end is looked at than of each of many.
_TAIL_BYTES = 4 << 20
_TAIL_OF_MANY = 256 << 10
_MANY = 8


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
    bounds = limits or Limits()
    read = 0
    for source in sources:
        if bounds.total is not None and read >= bounds.total:
            break
        with suppress(OSError):
            read += _read(source, collector, bounds)
    clues = order([*collector.placed(), *_new(more, collector)])
    return judge(
        collector.processes(), clues, promise, version=collector.version, well=well, nodes=nodes
    )


def _read(source: Source, collector: Collector, bounds: Limits) -> int:
    file = str(source.path)
    writer = Writer(host=source.host, pid=source.pid, rank=source.rank)

    def take(text: str, number: int, whole: bool) -> None:
        collector.take(text, file=file, number=number, whole=whole, writer=writer)

    return stream(source.path, take, most=bounds.file)


def _new(more: Iterable[Clue], collector: Collector) -> list[Clue]:
    """Return those of ``more`` that the files did not tell themselves."""
    told = {(clue.finding.kind, clue.finding.node) for clue in collector.placed()}
    return [clue for clue in more if (clue.finding.kind, clue.finding.node) not in told]


def ends(sources: Sequence[Source]) -> list[Clue]:
    """Return what the ends of the files say of exceptions, and of Slurm."""
    size = _TAIL_BYTES if len(sources) <= _MANY else _TAIL_OF_MANY
    found: list[Clue] = []
    for source in sources:
        if source.traces:
            for ending in endings(tail(source.path, size)):
                place = len(found) + (1 << 20)  # after what stands before the end
                clue = Clue(finding=ending.finding, text=ending.text, order=place)
                found.append(_named(clue, source))
    return found


def _named(clue: Clue, source: Source) -> Clue:
    return Clue(finding=clue.finding, text=clue.text, file=str(source.path), order=clue.order)
