"""Event files for TensorBoard, one an attempt, in one folder.

Each begins with a word that takes back what earlier files say from some step on: TensorBoard's
`purge_step`. Which steps are safely in the files stands beside them, so that each attempt adds what
is missing, and no more.

Source: tensorboard 2.21, backend/event_processing (how START is heeded; order of files by name) and
summary/writer/record_writer.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.checkpoint.durable import write_json
from orchestrator.trainer.mirror.curve import Line, numbers

_PREFIX = "events.out.tfevents."


class TensorBoard:
    """Writes event files below ``folder``."""

    name = "TensorBoard"

    def __init__(self, folder: Path, *, resumed: int) -> None:
        self._folder, self._resumed = folder, resumed
        self._mark = folder / "written.json"
        self._step = 0
        self._file: BinaryIO | None = None
        self._records: Any = None

    def open(self) -> int:
        """Begin a file; return the last step that the files have for good."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.close()  # where an earlier beginning failed
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._step = min(self._written(), self._resumed)
        self._file = self._new_file().open("xb")
        self._records = RecordWriter(self._file)
        self._say(file_version="brain.Event:2")
        self._say(session_log={"status": 1}, step=self._step + 1)  # 1 is START
        return self._step

    def write(self, line: Line) -> None:
        """Add a point to each curve."""
        values = [{"tag": name, "simple_value": v} for name, v in numbers(line).items()]
        at = line.get("at")
        self._say(step=line["step"], at=at if isinstance(at, float) else None, values=values)
        self._step = line["step"]

    def flush(self) -> None:
        """Bring all to disk, then say so."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._written() != self._step:
            write_json(self._mark, {"step": self._step})

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _written(self) -> int:
        try:
            return int(json.loads(self._mark.read_text())["step"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0

    def _new_file(self) -> Path:
        # TensorBoard reads in the order of the names, and clocks of two nodes may differ.
        taken = [path.name.split(".")[3] for path in self._folder.glob(f"{_PREFIX}*")]
        newest = max((int(number) for number in taken if number.isdigit()), default=0)
        number = max(int(time.time()), newest + 1)
        return self._folder / f"{_PREFIX}{number:010d}.{socket.gethostname()}.{os.getpid()}"

    def _say(
        self,
        *,
        at: float | None = None,
        step: int = 0,
        values: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        summary = {"summary": {"value": values}} if values is not None else {}
        event = Event(wall_time=time.time() if at is None else at, step=step, **summary, **fields)
        self._records.write(event.SerializeToString())
