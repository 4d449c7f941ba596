"""From lines of any number of files to processes and errors. Pure."""

import re
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.fabric.clues import Clue, Clues, of_line
from orchestrator.fabric.lines import NOBODY, Line, Writer, read
from orchestrator.fabric.network import Process

# More processes than any job has on the nodes whose logs one reads at a time.
_MOST_PROCESSES = 65536
# More processes of one id are not compared with each other.
_MOST_JOINED = 256
# More different errors are not compared with each other.
_MOST_TEXTS = 1000
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")


class Collector:
    """Takes lines one after the other; what it keeps is bounded."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, int, str], Process] = {}
        self._version = ""
        self.clues = Clues()
        # The newest date of each file: a line without one is no older.
        self._at: dict[str, float] = {}

    def take(
        self, text: str, *, file: str, number: int = 0, whole: bool = True, writer: Writer = NOBODY
    ) -> None:
        """Take one line.

        Args:
            text: The line.
            file: Where it stands.
            number: Its number there.
            whole: Whether it is known to have ended there.
            writer: Whose file it is, where the line does not say.
        """
        for line in read(text, whole=whole, writer=writer):
            if line.at is not None and len(self._at) < _MOST_PROCESSES:
                self._at[file] = line.at
            if line.level:
                self._process(line, file).add(line, file=file, number=number)
            # NCCL prints it without a name, too, so it may stand behind another one's line.
            if not self._version and (match := _VERSION.search(line.message)):
                self._version = match[1]
            if line.level in ("", "WARN"):
                self._clue(line, file, number)

    def _clue(self, line: Line, file: str, number: int) -> None:
        if (finding := of_line(line)) is None:
            return
        if finding.at is None:
            finding = replace(finding, at=self._at.get(file))
        self.clues.add(finding, text=line.text, file=file, number=number, pid=line.pid)

    def _process(self, line: Line, file: str) -> Process:
        # Without NCCL's own word it is whoever writes into this file by this prefix.
        key = (line.host, line.pid, "" if line.pid else f"{file}{line.task}")
        found = self._processes.get(key)
        if found is None:
            found = Process(line.host, line.pid, key[2])
            if len(self._processes) < _MOST_PROCESSES:
                self._processes[key] = found
        return found

    @property
    def version(self) -> str:
        """The version of NCCL, as the first that said it."""
        told = (p.version for p in self._processes.values() if p.version)
        return next(told, self._version)

    def processes(self) -> list[Process]:
        """Return the processes, those that were heard of by a torn name under their own.

        Once: what is told of two of them is put into one.
        """
        by_pid: dict[int, list[Process]] = {}
        for process in self._processes.values():
            by_pid.setdefault(process.pid, []).append(process)
        return [
            process
            for pid, same in by_pid.items()
            for process in (_joined(same) if pid and len(same) > 1 else same)
        ]

    def placed(self, processes: Sequence[Process]) -> list[Clue]:
        """Return the errors, the root cause first, with the rank of the process that wrote them."""
        ranks = {(p.host, p.pid): p.rank for p in processes if p.pid}
        hosts = _hosts_by_pid(processes)
        return [_placed(clue, ranks, hosts) for clue in _without_pieces(self.clues.ordered())]


def _joined(processes: list[Process]) -> list[Process]:
    """Join processes of one id whose hosts are one name, torn or glued to another's line.

    What begins most lines has the right name, and of two of them the longer one.
    """
    if len(processes) > _MOST_JOINED:  # containers may give every rank the same id
        return processes
    kept: list[Process] = []
    for process in sorted(processes, key=lambda p: (-p.clean, -len(p.host))):
        owner = next((other for other in kept if _torn(process, other)), None)
        if owner is None:
            kept.append(process)
        else:
            owner.absorb(process)
    return kept


def _torn(process: Process, owner: Process) -> bool:
    a, b = process.host, owner.host
    same = bool(a and b) and (a.endswith(b) or b.endswith(a))
    return same and process.clean <= max(3, owner.clean // 4)


def _without_pieces(clues: list[Clue]) -> list[Clue]:
    """Leave out errors whose line is a piece of another one's: a write that was torn."""
    texts = {clue.text for clue in clues}
    if len(texts) > _MOST_TEXTS:
        return clues
    pieces = {text for text in texts if any(text in other for other in texts if other != text)}
    return [clue for clue in clues if clue.text not in pieces]


def _hosts_by_pid(processes: Sequence[Process]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for process in processes:
        if process.pid and process.host:
            found.setdefault(process.pid, []).append(process.host)
    return found


def _placed(
    clue: Clue, ranks: dict[tuple[str, int], int | None], hosts: dict[int, list[str]]
) -> Clue:
    finding, host = clue.finding, clue.finding.node
    known = hosts.get(clue.pid, [])
    if host and known and host not in known:
        host = next((n for n in known if host.endswith(n) or n.endswith(host)), host)
    rank = finding.rank if finding.rank is not None else ranks.get((host, clue.pid))
    return replace(clue, finding=replace(finding, node=host, rank=rank))
