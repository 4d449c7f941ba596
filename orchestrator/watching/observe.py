"""Look at runs: the marks and attempts in their directories, the jobs in the scheduler."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from orchestrator import checkpoint
from orchestrator.decide import History, Observation
from orchestrator.errors import FsdpqError, QueryError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store
from orchestrator.runstore.history import history
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import Answer, JobRecord, JobState, Scheduler

# A job in one of these states needs no decision, so its run directory need not be read further.
_CALM = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.COMPLETING})

# How long the job of a finished run may take to end, whatever its ranks look like meanwhile.
ENDING_S = 120.0

Runs = Sequence[tuple[RunLayout, LaunchPlan]]


def look(runs: Runs, scheduler: Scheduler, *, whole: bool = True) -> list[Sight]:
    """Return what is seen of ``runs``, all of one scheduler, with one question for all of them.

    First the marks, then the scheduler, then what events, attempts and checkpoints tell: what is
    said of a job that has ended is read after its end. Runs that are finished are not asked for.

    Args:
        runs: The runs.
        scheduler: Where their jobs are.
        whole: Read also the runs that nothing is to be done about; without it ten thousand runs
            cost less than a second.
    """
    sights = [Sight(layout, plan, _marks(layout), History(), read=False) for layout, plan in runs]
    open_ = [sight for sight in sights if not sight.seen.finished or sight.seen.stalled]
    answer = _ask(open_, scheduler)
    if not isinstance(answer, QueryError):
        jobs = _by_name(answer.records)
        sights = [_with_jobs(sight, answer, jobs.get(sight.plan.job_name, [])) for sight in sights]
    return [
        _read_on(sight) if whole or _unproven(sight) or not _calm(sight.seen) else sight
        for sight in sights
    ]


def _with_jobs(sight: Sight, answer: Answer, jobs: Sequence[JobRecord]) -> Sight:
    seen = replace(sight.seen, jobs=tuple(jobs), silent=answer.silent)
    return replace(sight, seen=seen)


def _to_be_judged(seen: Observation, past: History) -> bool:
    """Return whether the end of the newest attempt is to be decided on: only then logs are read."""
    over = seen.finished or seen.cancelled_at is not None or past.gave_up is not None
    alive = any(job.live for job in seen.jobs or ())
    known = bool(seen.jobs) or not seen.silent
    return known and not over and not alive


def _marks(layout: RunLayout) -> Observation:
    """Return what a run directory tells at a glance, or why it does not.

    A directory that does not read must not hide the others.
    """
    now = time.time()
    try:
        names = os.listdir(layout.root)  # noqa: PTH208 (a Path for each name costs more)
        cancelled_at = _cancelled_at(layout) if layout.CANCELLED in names else None
    except (FsdpqError, OSError) as problem:
        return Observation(trouble=str(problem), now=now)
    return Observation(
        now=now,
        finished=layout.FINISHED in names,
        cancelled_at=cancelled_at,
        stalled=layout.STALLED in names and _still(layout, names, now),
    )


def _still(layout: RunLayout, names: Sequence[str], now: float) -> bool:
    """Return whether the mark of a stall is about what goes on.

    Of a finished run it is about its end, and an end takes its time.

    Raises:
        OSError: The marks cannot be looked at.
    """
    if layout.FINISHED not in names:
        return True
    finished = layout.finished.stat().st_mtime
    return layout.stalled.stat().st_mtime > finished and now - finished > ENDING_S


def _calm(seen: Observation) -> bool:
    """Return whether nothing else in the run directory can change what is done about a run."""
    if seen.finished or seen.trouble or seen.jobs is None:
        return True
    live = [job for job in seen.jobs if job.live]
    return bool(live) and not seen.stalled and live[0].state in _CALM


def _unproven(sight: Sight) -> bool:
    """Return whether the network of a run that trains may be a reason to stop it."""
    jobs = sight.seen.jobs or ()
    return sight.policy.require_rdma and any(job.state is JobState.RUNNING for job in jobs)


def _read_on(sight: Sight) -> Sight:
    """Return the same with all that the run directory tells, and the marks as they are now."""
    layout = sight.layout
    if sight.seen.trouble:
        return sight
    try:
        past = history(store.events(layout))
        seen = replace(
            sight.seen,
            finished=sight.seen.finished or layout.finished.exists(),
            cancelled_at=_cancelled_at(layout),
            attempt=facts.latest(layout),
            checkpoint_step=checkpoint_step(layout),
        )
        if seen.attempt is not None and _to_be_judged(seen, past):
            seen = replace(seen, attempt=facts.ended(layout, seen.attempt))
        return replace(sight, seen=seen, past=past, read=True)
    except (FsdpqError, OSError) as problem:
        return replace(sight, seen=Observation(trouble=str(problem), now=sight.seen.now))


def _ask(sights: Sequence[Sight], scheduler: Scheduler) -> Answer | QueryError:
    if not sights:
        return Answer(())
    try:
        return scheduler.jobs([sight.plan.job_name for sight in sights], ids=_ids(sights))
    except QueryError as error:
        return error


def _ids(sights: Sequence[Sight]) -> Callable[[Sequence[JobRecord]], set[str]]:
    """Return what tells, from the jobs that the queue knows, the ids to ask accounting for."""

    def missing(found: Sequence[JobRecord]) -> set[str]:
        live = {job.name for job in found if not job.state.ended}
        left = [sight.layout for sight in sights if sight.plan.job_name not in live]
        submitted = (history(store.events(layout)).submitted[-1:] for layout in left)
        ids = {job_id for newest in submitted for job_id in newest}
        # A job that was submitted by hand, or whose id got lost with its submitter.
        ids |= {facts.newest_job_id(layout) for layout in left}
        return ids - {job.job_id for job in found} - {""}

    return missing


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
    """Return the step of the newest checkpoint, complete by its files' sizes or unread here.

    One that cannot be read for a while counts on: else each such while would look like progress.
    """
    newest = checkpoint.newest_wanted(layout.checkpoints)
    return newest.step if newest else None
