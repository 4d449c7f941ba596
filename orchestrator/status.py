"""Put together what `report` needs to know of a run. Reads, never writes."""

import json
import os
from pathlib import Path
from typing import Any

from orchestrator import facts, report, store
from orchestrator.decide import Action
from orchestrator.ledger import Books
from orchestrator.report import Status
from orchestrator.sight import Sight

_TAIL_BYTES = 65536


def of(sight: Sight, action: Action, *, whole: bool = False) -> Status:
    """Return the status of the run that is seen.

    Args:
        sight: What is seen of it.
        action: What is to be done about it.
        whole: Read all of its metrics, for the ledger. Without, only their end is read: of a
            run among many, or of one that is looked at every few seconds.
    """
    layout = sight.layout
    events = store.events(layout)
    times = [e["at"] for e in events if e["kind"] == "submitting"]
    restarts = [e for e in events if e["kind"] == "restart"]
    newest = last_line(layout.metrics)
    lines = store.read_lines(layout.metrics) if whole else [newest]
    return report.status(
        sight,
        action,
        attempts=facts.attempts(layout, metrics=lines),
        metrics={
            key: value for key, item in newest.items() if (value := facts.number(item)) is not None
        },
        causes={
            e["attempt"]: str(e.get("cause")) for e in restarts if isinstance(e.get("attempt"), int)
        },
        submitted_at=times[0] if times else None,
        books=Books(metrics=lines, saves=store.read_lines(layout.saves)) if whole else None,
        environment_changes=facts.environment_changes(layout) if whole else (),
    )


def last_line(path: Path) -> dict[str, Any]:
    """Return the last whole JSON line of ``path``; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(item, dict):
            return item
    return {}
