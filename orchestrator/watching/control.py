"""What a user asks of a run: cancel it, start it again."""

import getpass
import os
from typing import NamedTuple

from orchestrator.decide import BY_HAND, end_key, turn, unanswered_s
from orchestrator.errors import RunError, SubmitError
from orchestrator.judging.nodes import left_out
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import claims, store
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import JobRecord, JobState, Scheduler
from orchestrator.submitting import starting
from orchestrator.watching import observe, watch


def cancel(layout: RunLayout, plan: LaunchPlan, *, now: bool) -> str:
    """Cancel a run for good and return a sentence on it.

    The mark comes first: whatever ends the job afterwards, nothing puts it back.

    Raises:
        RunError: The run is finished.
        SchedulerError: The scheduler does not answer; the mark stands, and a watcher goes on.
    """
    if layout.finished.exists():
        raise RunError(f"{layout.name}: is finished; there is nothing to cancel")
    if not layout.cancelled.exists():
        store.mark_cancelled(layout, by=_user())
        store.append(layout, "cancel", by=_user(), now=now)
    scheduler, live = _live(layout, plan)
    saving = [job for job in live if job.state is JobState.RUNNING and not now]
    for job in live:
        if job in saving:
            scheduler.notify(job.job_id, signal=plan.notice_signal)
        else:
            scheduler.cancel(job.job_id)
    if saving:
        told = f"cancelled; job {saving[0].job_id} was told to save and end"
        return f"{layout.name}: {told}. `fsdpq cancel --now {layout.name}` does not wait"
    return f"{layout.name}: cancelled"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number that no name belongs to
        return str(os.getuid())


class Requeued(NamedTuple):
    """A sentence on what was done, and whether a job is saving now and will put itself back."""

    text: str
    saving: bool = False


def requeue(layout: RunLayout, plan: LaunchPlan) -> Requeued:
    """Start a run again now.

    A run that trains is sent the notice: it saves, and its batch shell puts it back.

    Raises:
        RunError: The run is finished, or still being cancelled.
        SchedulerError: The scheduler refused or does not answer.
    """
    if layout.finished.exists():
        raise RunError(f"{layout.name}: is finished; there is nothing to start again")
    scheduler, live = _live(layout, plan)
    if live:
        return _hurry(layout, plan, live[0], scheduler)
    sight = _claim_end(layout, plan, scheduler)
    try:
        return Requeued(f"{layout.name}: submitted job {_submit(sight, scheduler)}")
    finally:
        claims.release(layout, turn(sight.past))


def _submit(sight: Sight, scheduler: Scheduler) -> str:
    layout, cancelled = sight.layout, store.read_json(sight.layout.cancelled)
    # What a job of this name does from here on is what the user wants, not what was before.
    layout.cancelled.unlink(missing_ok=True)
    layout.no_progress.unlink(missing_ok=True)
    store.append(
        layout,
        "restart",
        cause=BY_HAND,
        why=f"asked for by {_user()}",
        checkpoint_step=observe.checkpoint_step(layout),
        how="resubmit",
    )
    bad = left_out(sight.past.suspicions, sight.policy, now=sight.seen.now)
    try:
        return starting.resubmit(sight, bad, scheduler)
    except SubmitError:
        if cancelled is not None:  # as it was before
            store.mark_cancelled(layout, by=str(cancelled.get("by")))
        raise


def _claim_end(layout: RunLayout, plan: LaunchPlan, scheduler: Scheduler) -> Sight:
    """Take the end of the run's last job for this process, as a watcher does that restarts it.

    Returns:
        What is seen of the run; its `turn` is claimed, and to be released.

    Raises:
        RunError: A watcher has it, things have changed, or its job may still turn up.
        QueryError: The scheduler does not answer.
    """
    before = observe.look([(layout, plan)], scheduler)[0]
    key = turn(before.past)
    if not claims.claim(layout, key):
        raise RunError(_taken(layout))
    try:
        _check_same(before, observe.look([(layout, plan)], scheduler)[0])
    except RunError:
        claims.release(layout, key)
        raise
    return before


def _check_same(before: Sight, now: Sight) -> None:
    """Refuse to start a run again that another one has started since, or may have.

    Raises:
        RunError: That is so.
    """
    if now.seen.jobs is None or now.seen.trouble:
        why = now.seen.trouble or "the scheduler does not answer"
        raise RunError(f"{now.layout.name}: {why}; nothing was done")
    ends = [end_key(sight.seen, sight.past) for sight in (before, now)]
    lives = any(job.live for job in now.seen.jobs)
    if lives or ends[0] != ends[1] or before.past != now.past:
        raise RunError(_taken(now.layout))
    if left_s := unanswered_s(now.seen, now.past):
        why = "its last submission got no answer, and the job may still turn up"
        raise RunError(f"{now.layout.name}: {why}; try again in {left_s:.0f} s")


def _taken(layout: RunLayout) -> str:
    return (
        f"{layout.name}: a watcher is starting it again right now; see `fsdpq status {layout.name}`"
    )


def _hurry(layout: RunLayout, plan: LaunchPlan, job: JobRecord, scheduler: Scheduler) -> Requeued:
    if layout.cancelled.exists():
        raise RunError(f"{layout.name}: job {job.job_id} is still being cancelled; try again then")
    if job.state is JobState.PENDING:
        scheduler.start_now(job.job_id)
        return Requeued(f"{layout.name}: job {job.job_id} waits for nodes, no longer for a time")
    scheduler.notify(job.job_id, signal=plan.notice_signal)
    return Requeued(
        f"{layout.name}: job {job.job_id} was told to save and start again", saving=True
    )


def _live(layout: RunLayout, plan: LaunchPlan) -> tuple[Scheduler, list[JobRecord]]:
    """Return the run's scheduler and its live jobs.

    Raises:
        QueryError: The scheduler does not answer.
    """
    scheduler = watch.scheduler_of(plan.scheduler, [(layout, plan)])
    answer = scheduler.jobs([plan.job_name])
    return scheduler, [job for job in answer.records if job.live]
