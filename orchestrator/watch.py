"""The one loop: look, decide, act, record. Stateless, so any number of these may run at once."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from orchestrator import facts, observe, store
from orchestrator.decide import (
    Action,
    CancelJobs,
    Over,
    Restart,
    StartNow,
    Wait,
    decide,
    turn,
)
from orchestrator.errors import ActionError, FsdpqError, SubmitError
from orchestrator.layout import RunLayout
from orchestrator.local.scheduler import LocalScheduler
from orchestrator.plan import LaunchPlan
from orchestrator.scheduler import JobState, Scheduler
from orchestrator.sight import Sight
from orchestrator.slurm.client import SlurmScheduler

START_NOW_EVERY_S = 2.0
# How long a single pass stays for what changes soon; the next one goes on from there.
SETTLED_S = 30.0

Runs = Sequence[tuple[RunLayout, LaunchPlan]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass found for one run, and what it did about it."""

    sight: Sight
    action: Action
    note: str = ""


def scheduler_of(kind: str, runs: Runs) -> Scheduler:
    """Return the scheduler of ``runs``, all of one ``kind``."""
    if kind == "local":
        # As the scripts know the run, and not by the path that it was asked for by.
        return LocalScheduler({plan.job_name: RunLayout(Path(plan.run_dir)) for _, plan in runs})
    return SlurmScheduler(os.getuid())


def look(runs: Runs) -> list[tuple[Sight, Action]]:
    """Return what is seen of each run and what is to be done about it; does nothing."""
    return [(sight, action) for _, sights in _by_scheduler(runs) for sight, action in sights]


def _by_scheduler(runs: Runs) -> Iterator[tuple[Scheduler, list[tuple[Sight, Action]]]]:
    ordered = sorted(runs, key=lambda run: run[1].scheduler)
    for kind, group in groupby(ordered, key=lambda run: run[1].scheduler):
        members = list(group)
        scheduler = scheduler_of(kind, members)
        sights = observe.look(members, scheduler)
        yield scheduler, [(sight, decide(sight.seen, sight.past, sight.policy)) for sight in sights]


def once(runs: Runs) -> list[Outcome]:
    """Look at all runs once and do what is to be done."""
    return [
        Outcome(sight, action, _act(sight, action, scheduler))
        for scheduler, sights in _by_scheduler(runs)
        for sight, action in sights
    ]


def settled(runs: Runs) -> list[Outcome]:
    """Return `once`, repeated for what changes within seconds: jobs that are being put back."""
    outcomes = {outcome.sight.layout: outcome for outcome in once(runs)}
    until = time.monotonic() + SETTLED_S
    while waiting := [o for o in outcomes.values() if _changes_soon(o.action)]:
        if time.monotonic() > until:
            break
        time.sleep(START_NOW_EVERY_S)
        again = once([(o.sight.layout, o.sight.plan) for o in waiting])
        outcomes |= {outcome.sight.layout: outcome for outcome in again}
    return list(outcomes.values())


def _changes_soon(action: Action) -> bool:
    return isinstance(action, StartNow) or (isinstance(action, Wait) and action.soon)


def until_back(layout: RunLayout, plan: LaunchPlan, *, timeout_s: float) -> None:
    """Look after a run that is being put back until its next attempt starts, or for so long."""
    before = facts.latest(layout)
    number = before.number if before else 0
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        action = once([(layout, plan)])[0].action
        newest = facts.latest(layout)
        if isinstance(action, Over) or (newest is not None and newest.number > number):
            return
        time.sleep(START_NOW_EVERY_S)


def loop(
    runs: Callable[[], Runs], *, every_s: float, show: Callable[[list[Outcome]], bool]
) -> None:
    """Look, act and ``show``, again and again, until ``show`` says that it is enough."""
    while True:
        outcomes = once(runs())
        if show(outcomes):
            return
        hurry = any(_changes_soon(outcome.action) for outcome in outcomes)
        time.sleep(min(every_s, START_NOW_EVERY_S) if hurry else every_s)


def _act(sight: Sight, action: Action, scheduler: Scheduler) -> str:
    """Do ``action`` and return a note on it.

    A scheduler that refuses, or a file system that does, is noted: other runs want looking after.
    """
    try:
        _adopt(sight)
        match action:
            case StartNow():
                facts = {"job_id": action.job_id, "restart": action.restart}
                store.append(sight.layout, "start now", **facts)
                scheduler.start_now(action.job_id)
            case CancelJobs(job_ids=job_ids):
                for job_id in job_ids:
                    scheduler.cancel(job_id)
                store.append(sight.layout, "ended jobs", job_ids=job_ids, why=action.why)
            case Over(record=True) | Restart():
                return _claimed(sight, action, scheduler)
    except (FsdpqError, OSError) as error:
        return str(error)
    return ""


def _adopt(sight: Sight) -> None:
    """Record a job that turned up after a submission without an answer, or was started by hand."""
    for job in sight.seen.jobs or ():
        known = sight.past.submitted
        if job.in_queue and job.state is not JobState.UNKNOWN and job.job_id not in known:
            store.append(sight.layout, "submitted", job_id=job.job_id, how="found in the queue")


def _claimed(sight: Sight, action: Over | Restart, scheduler: Scheduler) -> str:
    """Act on the end of a job as the only process that does, and let go of it afterwards.

    A process that looks after many runs lives on, and must not keep `fsdpq requeue` away.
    """
    try:
        if isinstance(action, Over):
            return _record_end(sight, action, scheduler)
        return _restart(sight, action, scheduler)
    finally:
        store.release(sight.layout, turn(sight.past))


def _objection(sight: Sight, action: Action, scheduler: Scheduler) -> str:
    """Return why this process may not act on the end of a job; "" if it may.

    Between looking and claiming another one may have restarted the run and gone.
    """
    if not store.claim(sight.layout, turn(sight.past)):
        return "another watcher restarts it"
    again = observe.look([(sight.layout, sight.plan)], scheduler)[0]
    same = decide(again.seen, again.past, again.policy) == action
    return "" if same else "it has changed since it was looked at"


def _record_end(sight: Sight, action: Over, scheduler: Scheduler) -> str:
    """Write down that the run is over, unless its user starts it again just now."""
    if objection := _objection(sight, action, scheduler):
        return objection
    if action.state == "cancelled":
        store.mark_cancelled(sight.layout, by=action.why)
    else:
        store.append(sight.layout, "gave up", cause=action.cause, why=action.why)
    return ""


def _restart(sight: Sight, action: Restart, scheduler: Scheduler) -> str:
    """Restart the run, unless another watcher is at it or things have changed meanwhile."""
    if objection := _objection(sight, action, scheduler):
        return objection
    store.append(
        sight.layout,
        "restart",
        cause=action.cause,
        why=action.why,
        checkpoint_step=sight.seen.checkpoint_step,
        attempt=sight.seen.attempt.number if sight.seen.attempt else None,
        how="requeue" if action.job_id else "resubmit",
        key=action.key,
    )
    if action.job_id is not None and _requeued(sight.layout, action.job_id, scheduler):
        return f"requeued job {action.job_id}"
    return f"submitted job {submit(sight.layout, sight.plan)}"


def _requeued(layout: RunLayout, job_id: str, scheduler: Scheduler) -> bool:
    try:
        scheduler.requeue(job_id)
    except ActionError as error:
        store.append(layout, "refused", what="requeue", job_id=job_id, why=str(error))
        return False
    return True


def submit(layout: RunLayout, plan: LaunchPlan) -> str:
    """Submit the run's script, record it and return the job id.

    Raises:
        SubmitError: The scheduler refused.
        SubmitUnknownError: No answer; a later pass looks for the job before it submits again.
    """
    store.append(layout, "submitting")
    return start(layout, plan)


def start(layout: RunLayout, plan: LaunchPlan) -> str:
    """Submit as `submit` does, for a run whose events say already that this is under way."""
    # submitit costs 90 ms to import, and most commands do without it.
    from orchestrator import submission

    local = plan.scheduler == "local"
    try:
        job_id = submission.submit_local(layout) if local else submission.submit_slurm(layout)
    except SubmitError as error:
        store.append(layout, "refused", what="submit", why=str(error))
        raise
    store.append(layout, "submitted", job_id=job_id)
    return job_id
