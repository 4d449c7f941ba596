"""Where the monitor writes a notice down: for the ranks of this node, and for the run."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.durable import write_json
from orchestrator.monitor.cloud.reclaim import Reclaim
from orchestrator.monitor.note_file import append
from orchestrator.rundir.layout import AttemptLayout


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one node."""

    notice_file: Path
    attempt: AttemptLayout
    node: int
    host: str

    def post(self, reclaim: Reclaim, *, at: float) -> None:
        """Write ``reclaim`` down, as heard ``at`` (seconds since 1970).

        The ranks come first: their file is on the node's own disk, and the run's file system may
        hang. The file in the attempt's folder is what `status` and the batch shell look at.

        Raises:
            OSError: It cannot be written.
        """
        line = f"{reclaim.word} {int(at)}\n"
        append(self.notice_file, line)
        append(self.attempt.root / f"notice.{self.node}", line)
        self.attempt.reclaims.mkdir(mode=0o700, exist_ok=True)
        content = {
            "node": self.host,
            "word": reclaim.word,
            "what": reclaim.what,
            "at": at,
            "ends_at": reclaim.ends_at,
        }
        write_json(self.attempt.reclaims / f"node-{self.node}.json", content, durable=False)
