"""Statuses of the run llama, of which 100 steps are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator import report
from orchestrator.bandwidth import Record
from orchestrator.decide import Action, Observation, Wait
from orchestrator.judging.ledger import Books
from orchestrator.report import Status, Told
from orchestrator.rundir.attempt import Attempt
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore.sight import Sight

from .builders import attempt, past, plan

RUNNING = Wait("running", "job 7 is running on n[1-2]")
SECONDS = "startup_s useful_s lost_s saving_s stopping_s other_s"


def sight(what: Observation, **history: Any) -> Sight:
    """Return the run with what is seen of it and its history."""
    return Sight(RunLayout(Path("/runs/llama")), plan(steps_total=100), what, past(**history))


def status(
    what: Observation | Sight,
    action: Action = RUNNING,
    *attempts: Attempt,
    metrics: dict[str, Any] | None = None,
    told: dict[int, Told] | None = None,
    submitted_at: float | None = None,
    books: Books | None = None,
    bandwidth: Record | None = None,
) -> Status:
    """Return the status of what is seen, with what is known of its attempts."""
    return report.status(
        what if isinstance(what, Sight) else sight(what),
        action,
        attempts=attempts,
        metrics=metrics or {},
        told=told or {},
        submitted_at=submitted_at,
        books=books,
        bandwidth=bandwidth,
    )


def rows(found: Status, key: str) -> list[Any]:
    """Return what all attempts have under a key."""
    return [row[key] for row in found.attempts]


def ran(number: int, resumed: int | None, last: int | None, **changes: Any) -> Attempt:
    """Return an attempt that went on from one step and came to another."""
    plain = {"restart": number - 1, "resumed": resumed, "last_step": last}
    return attempt(number, **{**plain, **changes})
