"""Errors in the lines of many processes, and which of them was first. Pure.

What a message means stands in `orchestrator.evidence`; here is only whose line it was, and when.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.evidence import scan
from orchestrator.evidence.nccl import NCCL
from orchestrator.evidence.stderr import STDERR
from orchestrator.fabric.lines import Line
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

# Errors kept of one kind, in all files together.
_PER_KIND = 64
_KINDS = 256
_TEXT = 600
_NOBODY = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """An error, and the line that says so.

    Attributes:
        finding: What it means; its ``node`` is the host and its ``rank`` the rank, as far as known.
        text: The line, or the first of an exception.
        file: Where it stands; "" where that is no file of the caller's.
        number: The number of the line in it, from 1; 0 where that is not known.
        order: The order of reading.
        pid: The process, where it is one of NCCL's.
        peer_host: The host at the other end of a connection, where it is known.
    """

    finding: Finding
    text: str
    file: str = ""
    number: int = 0
    order: int = 0
    pid: int = 0
    peer_host: str = ""


# What a network that came up all the same makes a mere remark of: NCCL had another way.
SETUP = frozenset(
    {
        "efa_provider_missing",
        "cxi_provider_missing",
        "no_net_plugin",
        "forced_network_missing",
        "dmabuf",
        "nccl_warn",
    }
)


def of_line(line: Line) -> Finding | None:
    """Return what an error in a line means; None where it is none.

    A warning of NCCL's that no pattern knows may be harmless, so it weighs little.
    """
    if line.level == "WARN":
        # Without a name in front the patterns would not take it for NCCL's own line.
        known = scan.findings([f"{line.host or _NOBODY}:0:0 [0] NCCL WARN {line.message}"], NCCL)
        found = known[0] if known else _unknown(line)
    else:
        known = scan.findings([line.text], STDERR)
        if not known:
            return None
        found = known[0]
    return replace(
        found,
        rank=found.rank if found.rank is not None else line.rank,
        node=line.host if found.node in ("", _NOBODY) else found.node,
        at=found.at if found.at is not None else line.at,
    )


def _unknown(line: Line) -> Finding:
    return Finding(
        kind="nccl_warn",
        cause=Cause.FABRIC,
        weight=Weight.MAYBE,
        what=f"NCCL warns: {line.message[:_TEXT]}",
        advice="Look at the lines around it",
    )


class Clues:
    """Keeps the errors that were found, a bounded number."""

    def __init__(self) -> None:
        self._found: list[Clue] = []
        self._kinds: dict[str, int] = {}

    def add(self, finding: Finding, *, text: str, file: str, number: int, pid: int = 0) -> None:
        """Keep an error, unless there are many of its kind already."""
        count = self._kinds.get(finding.kind, 0)
        if count >= _PER_KIND or (not count and len(self._kinds) >= _KINDS):
            return
        self._kinds[finding.kind] = count + 1
        clue = Clue(
            finding=finding,
            text=text.strip()[:_TEXT],
            file=file,
            number=number,
            order=len(self._found),
            pid=pid,
        )
        self._found.append(clue)

    def ordered(self) -> list[Clue]:
        """Return all, the root cause first."""
        return order(self._found)


def order(clues: Iterable[Clue]) -> list[Clue]:
    """Return the clues, the root cause first: by weight, then by time, then as they were read."""
    return sorted(clues, key=_key)


def _key(clue: Clue) -> tuple[int, bool, float, int]:
    at = clue.finding.at
    kind = clue.finding.kind
    vague = kind in ("nccl_warn", "exit", "signal")
    vague |= kind == "remote_exit" and not clue.finding.peer
    return (clue.finding.weight, vague, at if at is not None else float("inf"), clue.order)
