"""What ended Python programs and jobs, from the end of a log that several wrote. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.attempt import Finding
from orchestrator.evidence import errors, scan, tracebacks
from orchestrator.evidence.logs import BATCH, HINT
from orchestrator.fabric.lines import read

_TEXT = 16384
_WRITERS = 4096


@dataclass(frozen=True, slots=True)
class Ending:
    """An error at the end of a log, and the line that says so."""

    finding: Finding
    text: str


def endings(text: str) -> Iterator[Ending]:
    """Yield the exceptions that ended the writers of ``text``, and Slurm's own words."""
    if not any(word in text for word in ("Error", "Exception", "what():", "slurmstepd", "srun:")):
        return
    writers: dict[str, list[str]] = {}
    ranks: dict[str, int] = {}
    for raw in text.split("\n"):
        line = next(read(raw))
        if line.level or (line.task not in writers and len(writers) >= _WRITERS):
            continue
        writers.setdefault(line.task, []).append(line.text)
        if line.rank is not None:
            ranks[line.task] = line.rank
    for task, lines in writers.items():
        yield from _of_one(lines, ranks.get(task))


def _of_one(lines: list[str], rank: int | None) -> Iterator[Ending]:
    told = [line for line in lines if HINT.search(line)]
    for line in told:
        for finding in scan.findings([line], BATCH):
            yield Ending(finding, line)
    exceptions = [text[:_TEXT] for text in tracebacks.last("\n".join(lines))]
    found = [(errors.read(text), text) for text in exceptions]
    if not found:
        return
    finding, text = min(found, key=lambda pair: (pair[0].weight, pair[0].kind == "exception"))
    yield Ending(replace(finding, rank=rank), text.split("\n", 1)[0])
