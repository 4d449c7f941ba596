"""The beginnings of log lines: whose they are, and what is left without them. Pure.

One line may have passed several hands, and each put something in front:

    12: [default3]:[2026-03-13 22:26:02] node-1:1001:1007 [5] ibvwrap.c:262 NCCL WARN Call to ...
    ^ srun -l   ^ torchrun --tee         ^ host:pid:thread [GPU], source, level: NCCL

Two writers without a newline between them share a line, so NCCL's own beginning is looked for
anywhere in it. Sources: srun(1); torch/distributed/elastic/multiprocessing/tail_log.py;
src/debug.cc of NVIDIA/nccl 2.18 to 2.30.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

# Characters of a line that are looked at; NCCL itself cuts its lines at 1,024.
LONGEST = 8192
_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TASK = re.compile(r"\s{0,6}(\d{1,6}): ?")
_TEE = re.compile(r"\[([A-Za-z_]+)(\d{1,6})\]: ?")
_TIME = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?:?\s+"
)
_RECORD = re.compile(
    r"(?:(?P<host>[^\s:\[\]]{1,255}):(?P<pid>\d{1,9}):\d{1,9}(?:\([^)]{0,32}\))? \[-?\d+\] )?"
    r"(?:\d+\.\d+ )?(?:[\w./+-]+:\d+ )?(?:\(\w+\) )?"
    r"NCCL (?P<level>WARN|INFO|TRACE|CALL|ABORT|VERSION) "
)
_NCCL = "NCCL "
# More writers than that do not share a line.
_MOST_RECORDS = 16
# How what others put in front begins.
_FRONT = frozenset("[ 0123456789")
# torch's log lines: "[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [PG ID ... Rank 1] ".
_TORCH_NAME = "ProcessGroupNCCL.cpp:"
_TORCH_LINE = re.compile(
    r"(?:\[rank\d{1,8}\]: ?)?\[[A-Z]\d{3,4} [\d:.]{8,20} ProcessGroupNCCL\.cpp:"
)
_TORCH_RANK = re.compile(r"ProcessGroupNCCL\.cpp:\d+\] \[(?:PG [^\]]*?)?Rank (\d{1,8})\]")


class Line(NamedTuple):
    """What one writer said in one line.

    Attributes:
        text: Without what srun, torchrun and clocks put in front.
        message: What NCCL said; the same as ``text`` for a line that is not NCCL's.
        level: "INFO", "WARN", "TRACE"...; "" for a line that is not NCCL's.
        host, pid: NCCL's word for the process; "" and 0 where it is missing.
        rank: Global rank, where a prefix says so.
        task: What srun -l or torchrun --tee put in front, which tells two writers of one file
            apart; "" without one.
        at: Seconds since 1970; None without a date.
        first: Whether it began the line, so that its host is no other writer's as well.
        whole: Whether it ended where its writer ended it; a line that another one breaks into, or
            that the file ends in, may lack its end.
    """

    text: str
    message: str
    level: str = ""
    host: str = ""
    pid: int = 0
    rank: int | None = None
    task: str = ""
    at: float | None = None
    first: bool = True
    whole: bool = True


@dataclass(slots=True)
class _Front:
    rank: int | None = None
    task: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes into a file, where a line does not say; "", 0 and None where nobody knows."""

    host: str = ""
    pid: int = 0
    rank: int | None = None


NOBODY = Writer()


def read(text: str, *, whole: bool = True, writer: Writer = NOBODY) -> Iterator[Line]:
    """Yield what the writers of one line said, mostly one.

    Args:
        text: The line, without its end.
        whole: Whether the line is known to have ended there.
        writer: Who wrote it, where it does not say.
    """
    whole = whole and len(text) <= LONGEST
    front = _Front(writer.rank)
    rest = _strip(_clean(text), front)
    found = _records(rest)
    if not found:
        yield _other(rest, front, whole, writer)
        return
    torch = _TORCH_LINE.search(rest) if _TORCH_NAME in rest else None
    stop = torch.start() if torch else len(rest)
    if torch:  # one of its lines right behind one of NCCL's
        yield _other(rest[stop:], _Front(), whole, writer)
    for number, match in enumerate(found):
        last = number + 1 == len(found)
        end = max(match.end(), stop) if last else found[number + 1].start()
        yield Line(
            text=rest[match.start() : end].strip(),
            message=rest[match.end() : end].rstrip(),
            level=match["level"],
            host=match["host"] or writer.host,
            pid=int(match["pid"] or writer.pid),
            rank=front.rank,
            task=front.task,
            at=front.at,
            first=match.start() == 0,
            whole=whole and last and not torch,
        )


def plain(text: str) -> Line | None:
    """Return what stands in a line that is none of NCCL's; None for one that is."""
    front = _Front()
    rest = _strip(_clean(text), front)
    return None if _records(rest) else _other(rest, front, True, NOBODY)


def _clean(text: str) -> str:
    text = text[:LONGEST]
    return text if text.isprintable() else _CONTROL.sub("", _ANSI.sub("", text))


def _records(text: str) -> list[re.Match[str]]:
    """Return where NCCL begins to speak; looked for inside of a line only where it speaks twice."""
    if _NCCL not in text:
        return []
    first = _RECORD.match(text)
    if first is None or text.find(_NCCL, first.end()) >= 0:
        return list(islice(_RECORD.finditer(text), _MOST_RECORDS))
    return [first]


def _strip(text: str, front: _Front) -> str:
    """Return ``text`` without what was put in front, which is noted in ``front``."""
    for _ in range(8):
        if text[:1] not in _FRONT:
            break
        if match := _TEE.match(text):
            name, number = match[1], int(match[2])
            if name.lower() == "rank":
                front.rank = number
            front.task += f"/{name}{number}"
        elif match := _TIME.match(text):
            front.at = _seconds(match[1], match[2], match[3])
        elif match := _TASK.match(text):
            front.task += f"/{match[1]}"
        else:
            break
        text = text[match.end() :]
    return text


def _other(text: str, front: _Front, whole: bool, writer: Writer) -> Line:
    rank = front.rank
    if _TORCH_NAME in text and (match := _TORCH_RANK.search(text)):
        rank = int(match[1])
    return Line(
        text=text,
        message=text,
        host=writer.host,
        pid=writer.pid,
        rank=rank,
        task=front.task,
        at=front.at,
        whole=whole,
    )


def _seconds(date: str, fraction: str | None, zone: str | None) -> float | None:
    """Return a date as seconds since 1970; without a zone it is this machine's own."""
    try:
        at = datetime.fromisoformat(date)
        if zone:
            offset = datetime.fromisoformat(f"{date}{zone.replace('Z', '+00:00')}")
            at = offset.astimezone(UTC)
        return at.timestamp() + float(f"0.{fraction or 0}")
    except (ValueError, OverflowError, OSError):
        return None
