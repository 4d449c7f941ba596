"""Look at runs: the marks and attempts in their directories, the jobs in the scheduler."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator import checkpoint, facts, store
from orchestrator.decide import History, Observation
from orchestrator.errors import FsdpqError, QueryError
from orchestrator.history import history
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
