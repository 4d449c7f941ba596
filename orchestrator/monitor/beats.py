"""A duty: says of the ranks of this node how far they are, and which of them stand still."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.checkpoint.durable import write_json
from orchestrator.monitor.gpus import Gpus
from orchestrator.rundir.beat import ENDING, Beat, beats_folder, local_stack
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.rundir.node_report import Gpu, NodeReport, RankReport
from orchestrator.rundir.stack_files import publish
from orchestrator.rundir.worker_logs import have_begun

_PUBLISH_S = 15.0
# A tick comes every second; one that is this late says that the node stood still, or nearly.
_GAP_S = 10.0
# State of a process in /proc/PID/stat. A dead one that nobody has waited for yet is gone.
_STOPPED = "T"
_DEAD = ("", "X", "Z")


class Beats:
    """Reads the beats of a node's ranks and publishes attempts/N/nodes/K.json."""

    every_s = 1.0

    def __init__(
        self,
        *,
        attempt: Path,
        local_dir: Path,
        number: int,
        node: str,
        gpus: Gpus | None = None,
        start_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        gap_s: float = _GAP_S,
    ) -> None:
        """Prepare to watch.

        Args:
            attempt: The attempt's folder, on the shared disk.
            local_dir: The folder on the node's own disk where the ranks write.
            number: The node's number in its job, from 0.
            node: Its name.
            gpus: Asks for their clocks; nobody, if left out.
            start_s: How long workers may take to be started; for ever, if left out.
            clock: The clock of the beats.
            gap_s: How many seconds between two ticks say that the node stood still.
        """
        self._files = AttemptLayout(attempt)
        self._report = self._files.nodes / f"{number}.json"
        self._mark = RunLayout(attempt.parents[1]).stalled
        self._local_dir = local_dir
        self._node = node
        self._gpus = gpus
        self._clock = clock
        self._start_by = clock() + start_s if start_s is not None else float("inf")
        self._gap_s = gap_s
        self._published_at = float("-inf")
        self._ticked_at: float | None = None
        # When each standstill of this process ended, and how long it was.
        self._gaps: deque[tuple[float, float]] = deque(maxlen=64)
        self._urgent: frozenset[tuple[int, bool, bool, bool]] = frozenset()

    def tick(self) -> None:
        """Look at the ranks; publish every 15 s, and at once when one stalls or gets on again.

        Raises:
            OSError: The report cannot be written.
        """
        now = self._clock()
        self._note_gap(now)
        ranks = self._ranks(now)
        urgent = frozenset(
            (r.rank, r.stopped, r.alive, bool(r.collectives)) for r in ranks if _needs_word(r)
        )
        if urgent == self._urgent and now - self._published_at < _PUBLISH_S:
            return
        self._files.nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = NodeReport(node=self._node, at=round(time.time(), 3), ranks=ranks)
        write_json(self._report, report.to_json(), durable=False)
        self._urgent, self._published_at = urgent, now
        if urgent or self._never_began(now, ranks):  # a watcher reads on only where it sees this
            self._mark.touch()
        for rank in ranks:
            self._publish_stack(rank)

    def _never_began(self, now: float, ranks: tuple[RankReport, ...]) -> bool:
        return not ranks and now > self._start_by and not have_begun(self._files)

    def _note_gap(self, now: float) -> None:
        """Remember for how long this process itself stood still.

        A suspended job or a frozen machine stops its ranks as well, and none of them hangs for it.
        """
        if self._ticked_at is not None and now - self._ticked_at > self._gap_s:
            self._gaps.append((now, now - self._ticked_at))
        self._ticked_at = now

    def _idle(self, beat: Beat, now: float) -> float:
        frozen = sum(length for ended, length in self._gaps if ended > beat.moved)
        return max(0.0, now - beat.moved - frozen)

    def _ranks(self, now: float) -> tuple[RankReport, ...]:
        beats = sorted(_beats(beats_folder(self._local_dir)), key=lambda beat: beat.rank)
        gpus = self._gpus.look(now) if self._gpus else {}
        return tuple(self._rank(beat, now, gpus) for beat in beats)

    def _rank(self, beat: Beat, now: float, gpus: Mapping[int, Gpu]) -> RankReport:
        state = process_state(beat.pid)
        return RankReport.of(
            beat,
            idle_s=self._idle(beat, now),
            alive=state not in _DEAD,
            stopped=state == _STOPPED,
            gpu=gpus.get(beat.local_rank),
        )

    def _publish_stack(self, rank: RankReport) -> None:
        """Bring the stacks of a stalled rank along, where its own runtime could not."""
        source = local_stack(self._local_dir, rank.rank)
        target = self._files.stacks / f"rank-{rank.rank}.txt"
        if rank.stalled and _size(source) != _size(target):
            publish(source, target)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _needs_word(rank: RankReport) -> bool:
    return rank.stalled or rank.stopped or (not rank.alive and rank.phase != ENDING)


def _beats(folder: Path) -> list[Beat]:
    try:
        paths = list(folder.glob("rank-*"))
    except OSError:
        return []
    found = (_beat(path) for path in paths)
    return [beat for beat in found if beat is not None]


def _beat(path: Path) -> Beat | None:
    try:
        return Beat.from_text(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def process_state(pid: int) -> str:
    """Return the state of a process as one letter, "" where there is none. Source: proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
