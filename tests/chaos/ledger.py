"""What the training script writes down of itself, on a disk that no fault touches.

One file a rank for the whole run, appended in one write a line by every attempt. All hosts share
the disk, so the order of the lines is the order in which things happened, whatever a clock says.

<ledger>/rank-R.jsonl   {"kind": start | resumed | step | saving | saved | end, "attempt": N, ...}
<ledger>/goal           the last step of the run, once the runner has said so
<ledger>/ORDER-R        an order to rank R, which it removes before it obeys: see ORDERS
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

# raise: an exception in the next step; sleep: for ever; die-in-save: SIGKILL half-way through the
# next save.
ORDERS = ("raise", "sleep", "die-in-save")

Line = dict[str, Any]


def rank_file(ledger: Path, rank: int) -> Path:
    return ledger / f"rank-{rank}.jsonl"


def write(ledger: Path, rank: int, line: Line) -> None:
    """Append one line; the time is for people, and for what faults wait for."""
    data = json.dumps({**line, "rank": rank, "at": time.time()}).encode() + b"\n"
    descriptor = os.open(rank_file(ledger, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def goal(ledger: Path) -> int | None:
    try:
        return int((ledger / "goal").read_text())
    except (FileNotFoundError, ValueError):
        return None


def give_order(ledger: Path, order: str, rank: int) -> None:
    (ledger / f"{order}-{rank}").touch()


def take_order(ledger: Path, order: str, rank: int) -> bool:
    """Whether there is such an order; it is given once, so it is removed first."""
    try:
        (ledger / f"{order}-{rank}").unlink()
    except FileNotFoundError:
        return False
    return True


class Tail:
    """The lines of one rank, read as they come. Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def lines(self) -> list[Line]:
        """All lines so far; the list must not be changed."""
        with self._lock:
            self._read()
            return self._lines

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._lines += [json.loads(line) for line in whole.splitlines()]

    def steps_since(self, at: float) -> int:
        """How many steps were done after a time."""
        count = 0
        for line in reversed(self.lines()):
            if line["at"] <= at:
                break
            count += line["kind"] == "step"
        return count

    def newest(self, kind: str) -> Line | None:
        """The newest line of a kind."""
        return next((line for line in reversed(self.lines()) if line["kind"] == kind), None)
