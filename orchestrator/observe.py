"""Look at runs: the marks and attempts in their directories, the jobs in the scheduler."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
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

    The directories first, then the scheduler: a mark that appears in between is seen next time,
    but a job that ends in between is not taken for one that left no trace. Runs that are finished
    are not asked for.
    """
    sights = [Sight(layout, plan, *_directory(layout)) for layout, plan in runs]
    answer = _ask([sight for sight in sights if not sight.seen.finished], scheduler)
    if isinstance(answer, QueryError):
        return sights
    jobs = _by_name(answer.records)
    return [_with_jobs(sight, answer, jobs.get(sight.plan.job_name, [])) for sight in sights]


def _with_jobs(sight: Sight, answer: Answer, jobs: Sequence[JobRecord]) -> Sight:
    seen = replace(sight.seen, jobs=tuple(jobs), silent=answer.silent)
    return replace(sight, seen=seen)


def _directory(layout: RunLayout) -> tuple[Observation, History]:
    """Return what a run directory tells, or why it does not: one must not hide the others."""
    try:
        return _seen(layout), history(store.events(layout))
    except (FsdpqError, OSError) as problem:
        return Observation(trouble=str(problem), now=time.time()), History()


def _seen(layout: RunLayout) -> Observation:
    return Observation(
        now=time.time(),
        finished=layout.finished.exists(),
        cancelled_at=_cancelled_at(layout),
        attempt=facts.latest(layout),
        checkpoint_step=checkpoint_step(layout),
    )


def _ask(sights: Sequence[Sight], scheduler: Scheduler) -> Answer | QueryError:
    if not sights:
        return Answer(())
    ids = {sight.past.submitted[-1] for sight in sights if sight.past.submitted}
    # A job that was submitted by hand, or whose id got lost with its submitter.
    ids |= {sight.seen.attempt.job_id for sight in sights if sight.seen.attempt}
    try:
        return scheduler.jobs([sight.plan.job_name for sight in sights], ids=sorted(ids - {""}))
    except QueryError as error:
        return error


def _by_name(records: Iterable[JobRecord]) -> dict[str, list[JobRecord]]:
    found: dict[str, list[JobRecord]] = {}
    for job in records:
        found.setdefault(job.name, []).append(job)
    return found


def _cancelled_at(layout: RunLayout) -> float | None:
    """Return when the run was cancelled, None if it was not. That the mark is there is enough."""
    try:
        written = layout.cancelled.stat().st_mtime
    except FileNotFoundError:
        return None
    return facts.number((store.read_json(layout.cancelled) or {}).get("at")) or written


def checkpoint_step(layout: RunLayout) -> int | None:
    """Return the step of the newest complete checkpoint, by its files' sizes."""
    newest = checkpoint.newest_complete(layout.checkpoints)
    return newest.step if newest else None


def history(events: Iterable[dict[str, Any]]) -> History:
    """Return what fsdpq did for a run, from its events. Pure."""
    submitted: list[str] = []
    restarts: list[tuple[str, int | None]] = []
    answered: object = None
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
                # Whoever wrote down the one before for the same end was killed, or got no answer.
                if answered is not None and event.get("key") == answered:
                    restarts[-1:] = [(REFUSED, step) for _, step in restarts[-1:]]
                answered = event.get("key")
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
