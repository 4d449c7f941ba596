"""Look at runs: the marks and attempts in their directories, the jobs in the scheduler."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator import checkpoint, facts, store
from orchestrator.classify import Cause
from orchestrator.decide import BY_HAND, REFUSED, History, Observation, Over
from orchestrator.errors import FsdpqError, QueryError
from orchestrator.layout import RunLayout
from orchestrator.plan import LaunchPlan
from orchestrator.scheduler import Answer, JobRecord, Scheduler
from orchestrator.sight import Sight


def look(runs: Sequence[tuple[RunLayout, LaunchPlan]], scheduler: Scheduler) -> list[Sight]:
    """Return what is seen of ``runs``, all of one scheduler, with one question for all of them.

    Runs that are over by their marks are not asked for.
    """
    pasts = {layout: history(store.events(layout)) for layout, _ in runs}
    open_runs = [(layout, plan) for layout, plan in runs if not layout.finished.exists()]
    answer = _ask(open_runs, pasts, scheduler)
    jobs = _by_name(answer)
    return [
        Sight(layout, plan, _tolerant(layout, answer, jobs.get(plan.job_name, [])), pasts[layout])
        for layout, plan in runs
    ]


def _by_name(answer: Answer | QueryError) -> dict[str, list[JobRecord]]:
    found: dict[str, list[JobRecord]] = {}
    for job in answer.records if isinstance(answer, Answer) else ():
        found.setdefault(job.name, []).append(job)
    return found


def _tolerant(
    layout: RunLayout, answer: Answer | QueryError, jobs: Sequence[JobRecord]
) -> Observation:
    """Return what is seen of a run, or why nothing is: one in trouble must not hide the rest."""
    try:
        return _seen(layout, answer, jobs)
    except (FsdpqError, OSError) as problem:
        return Observation(trouble=str(problem), now=time.time())


def _ask(
    runs: Sequence[tuple[RunLayout, LaunchPlan]],
    pasts: dict[RunLayout, History],
    scheduler: Scheduler,
) -> Answer | QueryError:
    if not runs:
        return Answer(())
    ids = [past.submitted[-1] for layout, _ in runs if (past := pasts[layout]).submitted]
    try:
        return scheduler.jobs([plan.job_name for _, plan in runs], ids=ids)
    except QueryError as error:
        return error


def _seen(layout: RunLayout, answer: Answer | QueryError, jobs: Sequence[JobRecord]) -> Observation:
    return Observation(
        finished=layout.finished.exists(),
        cancelled_at=_cancelled_at(layout),
        jobs=tuple(jobs) if isinstance(answer, Answer) else None,
        silent=answer.silent if isinstance(answer, Answer) else "",
        attempt=facts.latest(layout),
        checkpoint_step=checkpoint_step(layout),
        now=time.time(),
    )


def _cancelled_at(layout: RunLayout) -> float | None:
    """Return when the run was cancelled, None if it was not. That the mark is there is enough."""
    try:
        written = layout.cancelled.stat().st_mtime
    except FileNotFoundError:
        return None
    at = (store.read_json(layout.cancelled) or {}).get("at")
    return float(at) if isinstance(at, int | float) else written


def checkpoint_step(layout: RunLayout) -> int | None:
    """Return the step of the newest complete checkpoint, by its files' sizes."""
    newest = checkpoint.newest_complete(layout.checkpoints)
    return newest.step if newest else None


def history(events: Iterable[dict[str, Any]]) -> History:
    """Return what fsdpq did for a run, from its events. Pure."""
    submitted: list[str] = []
    restarts: list[tuple[str, int | None]] = []
    asked_at: float | None = None
    hurried: list[tuple[str, int | None]] = []
    refused: list[tuple[float, str]] = []
    gave_up: Over | None = None
    for event in events:
        match event.get("kind"):
            case "submitting":
                asked_at = event.get("at")
            case "submitted":
                asked_at = gave_up = None
                refused.clear()
                if event.get("job_id") not in submitted:
                    submitted.append(str(event.get("job_id")))
            case "refused" if event.get("what") == "submit":
                asked_at = None
                refused.append((float(event.get("at", 0.0)), str(event.get("why"))))
                # It did not start, so it says nothing about the program either.
                restarts[-1:] = [(REFUSED, step) for _, step in restarts[-1:]]
            case "restart":
                restarts.append((str(event.get("cause")), event.get("checkpoint_step")))
                gave_up = None
                if event.get("cause") == BY_HAND:
                    refused.clear()
            case "start now":
                hurried.append((str(event.get("job_id")), event.get("restart")))
            case "gave up":
                gave_up = Over("failed", str(event.get("why")), _cause(event.get("cause")))
    return History(
        submitted=tuple(submitted),
        asked_at=asked_at,
        restarts=tuple(restarts),
        gave_up=gave_up,
        hurried=tuple(hurried),
        refused=tuple(refused),
    )


def _cause(text: object) -> Cause:
    """Return the cause called ``text``; an event of another version may have a word of its own."""
    try:
        return Cause(str(text))
    except ValueError:
        return Cause.NO_PROGRESS
