"""What to do about a run: one pure function over what is seen, what was done and the policy.

One owner for each cause. The batch shell puts its job back after a notice, Slurm does it for a
lost node and for preemption with requeue, the watcher does the rest. A restart is decided only
here, and only when no job of the run is alive, or when the one that is hangs.
"""

from orchestrator.decide.ended import (
    REFUSED_DELAY_S,
    REFUSED_TRIES,
    SETTLE_S,
    SUBMIT_SETTLE_S,
    decide_ended,
    end_key,
    turn,
    unanswered_s,
)
from orchestrator.decide.live import COLLECT_S, START_NOW_TRIES, decide_live
from orchestrator.decide.words import (
    BY_HAND,
    REFUSED,
    Action,
    CancelJobs,
    Exclude,
    History,
    Observation,
    Over,
    ProveNetwork,
    Replace,
    Restart,
    Restarted,
    StartNow,
    Stopped,
    TellStop,
    Wait,
)
from orchestrator.judging.classify import Cause
from orchestrator.launchplan.policy import Policy
from orchestrator.scheduler import JobRecord, JobState

# After `fsdpq cancel` the workers have this long to save before the job is ended for them.
CANCEL_SETTLE_S = 600.0


def decide(seen: Observation, past: History, policy: Policy) -> Action:
    """Return what to do about a run."""
    if seen.trouble:
        return Wait("unknown", f"the run directory cannot be read: {seen.trouble}")
    live = [job for job in seen.jobs or () if job.live]
    if seen.finished:
        return _finished(seen, live)
    if seen.cancelled_at is not None:
        return _cancelled(seen, live)
    if seen.jobs is None:
        return _unreachable("the scheduler does not answer")
    if live:
        return decide_live(live[0], seen, past, policy)
    return past.gave_up or decide_ended(seen, past, policy)


def _finished(seen: Observation, live: list[JobRecord]) -> Action:
    """Return that the run is over; a job some rank of which does not end is ended for it."""
    if seen.stalled and live:
        why = "the last step is done, and a rank of this job does not end"
        return CancelJobs(tuple(job.job_id for job in live), why)
    return Over("finished", "the last step is done", Cause.FINISHED)


def _unreachable(why: str) -> Wait:
    return Wait("unreachable", f"{why}; nothing is done until it does")


def _cancelled(seen: Observation, live: list[JobRecord]) -> Action:
    if seen.jobs is None:
        return _unreachable("cancelled, but the scheduler does not answer")
    asked_s = seen.now - (seen.cancelled_at or seen.now)
    waiting = [job.job_id for job in live if job.state is JobState.PENDING]
    late = [job.job_id for job in live] if asked_s > CANCEL_SETTLE_S else waiting
    if late:
        return CancelJobs(tuple(late), "the run is cancelled, and this job is not")
    if live:
        return Wait("stopping", "cancelled; the job was told to save and end")
    return Over("cancelled", "cancelled by its user; nothing restarts it", Cause.CANCELLED)


__all__ = [
    "BY_HAND",
    "CANCEL_SETTLE_S",
    "COLLECT_S",
    "REFUSED",
    "REFUSED_DELAY_S",
    "REFUSED_TRIES",
    "SETTLE_S",
    "START_NOW_TRIES",
    "SUBMIT_SETTLE_S",
    "Action",
    "CancelJobs",
    "Exclude",
    "History",
    "Observation",
    "Over",
    "Policy",
    "ProveNetwork",
    "Replace",
    "Restart",
    "Restarted",
    "StartNow",
    "Stopped",
    "TellStop",
    "Wait",
    "decide",
    "end_key",
    "turn",
    "unanswered_s",
]
