"""The judgement on a round, from the fake Slurm's own journal and what is left at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]


def journal(folder: Path) -> list[dict[str, Any]]:
    """Return what happened in Slurm, in order."""
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def problems(entries: Iterable[Entry], *, cancelled_at: float | None) -> list[str]:
    """Return what must never happen and did.

    Args:
        entries: The journal.
        cancelled_at: When the run was cancelled for good; None where it was not.
    """
    entries = list(entries)
    found = [*_more_than_one(entries)]
    if cancelled_at is not None:
        found += _back_after(entries, cancelled_at)
    return found


def _more_than_one(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield each time at which a second job of the run lived, waiting or running.

    A submission or a requeue brings one to life and its end takes it away, so this also says that
    each end was answered once.
    """
    live: set[str] = set()
    for entry in entries:
        if entry["what"] in ("submit", "requeue"):
            live.add(entry["job_id"])
            if len(live) > 1:
                who = f"{entry['what']} by {entry['asked_by']}"
                yield f"two jobs at once: {sorted(live)} after a {who} at {entry['at']}"
        elif entry["what"] == "end":
            live.discard(entry["job_id"])
            if entry["state"] == "REQUEUED" and entry["by"] != "slurm":
                yield f"{entry['by']} requeued job {entry['job_id']} while it ran"


def _back_after(entries: Iterable[Entry], cancelled_at: float) -> Iterator[str]:
    for entry in entries:
        if entry["what"] == "start" and entry["at"] > cancelled_at + 0.01:
            yield f"attempt {entry['attempt']} started after the run was cancelled"


def lost(state: Mapping[str, Any], *, cancelled: bool) -> list[str]:
    """Return why the run is not what it has to be at the end; empty if it is."""
    live = {
        job["id"]: job["state"] for job in state["jobs"].values() if job["start"] or job["begin"]
    }
    live = {key: word for key, word in live.items() if word in ("PENDING", "RUNNING")}
    if cancelled:
        return [f"cancelled, but {live} live"] if live else []
    return [] if list(live.values()) == ["RUNNING"] else [f"lost: its live jobs are {live}"]
