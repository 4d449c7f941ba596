"""What ended Python programs and jobs, from the end of a log that several wrote. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator.evidence import errors, reports, scan, tracebacks
from orchestrator.evidence.batch import BATCH, HINT
from orchestrator.fabric.lines import Line, plain
from orchestrator.fabric.shares import fair
from orchestrator.rundir.attempt import Finding

_TEXT = 16384
_WRAPPER = "multiprocessing.errors.ChildFailedError"
_WRITERS = 4096
# Reports of torchrun's, one a node, in the log of one writer.
_REPORTS = 256
# Of a MiB: lines that Slurm and the like may have written, and lines at all. A short text has as
# many as a quarter of that.
_TOLD = 300
_LINES = 12_288
# What tells one message from another: so many letters, without numbers.
_WORDING = 64
_NO_DIGITS = str.maketrans("", "", "0123456789")


@dataclass(frozen=True, slots=True)
class Ending:
    """An error at the end of a log, and the line that says so.

    Attributes:
        number: Its number in what was looked at, from 1.
    """

    finding: Finding
    text: str
    number: int


class _Said(NamedTuple):
    number: int
    text: str


def endings(text: str) -> Iterator[Ending]:
    """Yield the exceptions that ended the writers of ``text``, and Slurm's own words."""
    if not any(word in text for word in ("Error", "Exception", "what():", "slurmstepd", "srun:")):
        return
    writers: dict[str, list[_Said]] = {}
    ranks: dict[str, int] = {}
    for number, line in _lines(text):
        if line.task not in writers and len(writers) >= _WRITERS:
            continue
        writers.setdefault(line.task, []).append(_Said(number, line.text))
        if line.rank is not None:
            ranks[line.task] = line.rank
    yield from _told(writers.values(), _share(_TOLD, text))
    raised = [
        ending for task, lines in writers.items() for ending in _exception(lines, ranks.get(task))
    ]
    yield from _without_wrappers(raised + list(_ended(writers.values(), raised)))


def _without_wrappers(endings: list[Ending]) -> list[Ending]:
    """Leave out torchrun's own exception, unless there is nothing else.

    It says that a worker failed; whatever is known of the worker says more.
    """
    return [ending for ending in endings if _WRAPPER not in ending.text] or endings


def _ended(writers: Iterable[list[_Said]], raised: Iterable[Ending]) -> Iterator[Ending]:
    """Yield how ranks ended of which there is no exception, from torchrun's reports."""
    known = {ending.finding.rank for ending in raised}
    for lines in writers:
        for ended in reports.exits(said.text for said in lines)[:_REPORTS]:
            if ended.rank not in known:
                text = f"rank {ended.rank}: exitcode  : {ended.code}"
                found = reports.finding(ended, node=ended.host)
                place = f": {ended.rank} (local_rank: {ended.local_rank})"
                yield Ending(found, text, _number(lines, place))


def _share(of_a_mib: int, text: str) -> int:
    return of_a_mib * max(len(text), 1 << 18) >> 20


def _lines(text: str) -> Iterator[tuple[int, Line]]:
    """Yield the lines that are not NCCL's, with their numbers; the last ones of very many."""
    lines = text.split("\n")
    first = max(0, len(lines) - _share(_LINES, text))
    for number, raw in enumerate(lines[first:], first + 1):
        if (line := plain(raw)) is not None:
            yield number, line


def _told(writers: Iterable[list[_Said]], most: int) -> Iterator[Ending]:
    """Yield what Slurm and the like say, in at most so many lines."""
    lines = [line for lines in writers for line in lines if HINT.search(line.text)]
    keys = (line.text[:_WORDING].translate(_NO_DIGITS) for line in lines)
    for number, text in fair(lines, keys, most):
        for finding in scan.findings([text], BATCH):
            yield Ending(finding, text, number)


def _exception(lines: list[_Said], rank: int | None) -> Iterator[Ending]:
    exceptions = [text[:_TEXT] for text in tracebacks.last("\n".join(line.text for line in lines))]
    found = [(errors.read(text), text) for text in exceptions]
    if not found:
        return
    finding, text = min(found, key=lambda pair: (pair[0].weight, pair[0].kind == "exception"))
    first = text.split("\n", 1)[0]
    yield Ending(replace(finding, rank=rank), first, _number(lines, first))


def _number(lines: list[_Said], first: str) -> int:
    """Return the number of the last line that an exception's message begins in."""
    # Of what() of C++ only the message stands there.
    message = first.removeprefix("RuntimeError: ")
    places = (said.number for said in reversed(lines) if message in said.text)
    return next(places, lines[-1].number)
