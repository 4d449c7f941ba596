"""What torchrun prints when a worker has failed: which rank ended first on its node, and how. Pure.

    Root Cause (first observed failure):
    [0]:
      time      : 2026-11-29_22:08:06
      host      : n2.cluster
      rank      : 1 (local_rank: 1)
      exitcode  : -9 (pid: 22378)  (SIGKILL)

The other failures in the report are what torchrun did to the rest, so they are passed over.
Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, 2.11 to 2.14.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

_ROOT = "Root Cause (first observed failure):"
_FIELD = re.compile(r"^\s+(time|host|rank|exitcode)\s*: (.+)$")
_RANK = re.compile(r"(\d{1,8}) \(local_rank: (\d{1,8})\)")
_CODE = re.compile(r"(-?\d{1,6})\b")
# Lines of an entry; more is another process's line in between.
_ENTRY_LINES = 12
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_MEANING = {
    7: "Often a full /dev/shm, or a file that was mapped and got shorter",
    9: "Nothing in the log says who did it. The kernel, out of memory, is the usual one; it tells"
    " only its own log",
    11: "A bug in a library or an extension: run once with PYTHONFAULTHANDLER=1 for its stack",
}


@dataclass(frozen=True, slots=True)
class RankExit:
    """How the first rank to fail on a node ended.

    Attributes:
        code: Exit code; negative for a signal.
        at: Seconds since 1970, to the second.
    """

    rank: int
    local_rank: int
    host: str
    code: int
    at: float | None

    @property
    def signal(self) -> str:
        """The name of the signal that ended it, "" if none did."""
        return "" if self.code >= 0 else _SIGNALS.get(-self.code, f"signal {-self.code}")

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that no exception of its own brings: abort() is one's own."""
        return self.code < 0 and self.code != -6


def exits(lines: Iterable[str]) -> list[RankExit]:
    """Return the first failure of each report in ``lines``."""
    found = []
    rest = iter(lines)
    for line in rest:
        if line.strip() == _ROOT and (entry := _entry(rest)) is not None:
            found.append(entry)
    return found


def _entry(lines: Iterator[str]) -> RankExit | None:
    fields: dict[str, str] = {}
    for line, _ in zip(lines, range(_ENTRY_LINES), strict=False):
        if match := _FIELD.match(line):
            fields.setdefault(match[1], match[2])
        if "exitcode" in fields:
            break
    rank, code = _RANK.match(fields.get("rank", "")), _CODE.match(fields.get("exitcode", ""))
    if rank is None or code is None:
        return None
    host, at = fields.get("host", "").strip(), _time(fields.get("time", ""))
    return RankExit(int(rank[1]), int(rank[2]), host, int(code[1]), at)


def _time(text: str) -> float | None:
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d_%H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None


def finding(ended: RankExit, *, node: str) -> Finding:
    """Return the end of a rank that left no word itself.

    SIGTERM is torchrun's or Slurm's, SIGABRT often the watchdog's: something was before. So it may
    have been where a rank ended by itself without a word, as one does that torchrun asks to end;
    of two that ended at once torchrun's report may name that one.
    """
    by_signal = ended.code < 0
    weight = Weight.OWN if by_signal and ended.code != -6 else Weight.MAYBE
    if ended.code == -15:
        weight = Weight.ECHO
    how = f"was ended by {ended.signal}" if by_signal else f"ended with exit code {ended.code}"
    return Finding(
        kind="signal" if by_signal else "exit",
        cause=Cause.WORKER_ERROR,
        weight=weight,
        what=f"{how} and left no error",
        advice=_MEANING.get(-ended.code, "Look at its log: `fsdpq logs RUN --rank R`"),
        rank=ended.rank,
        node=node,
        at=ended.at,
    )
