"""What is decided of a run, for tests: `decide` with the usual history and policy, in short."""

from __future__ import annotations

from typing import Any

from orchestrator.decide import (
    Action,
    CancelJobs,
    Exclude,
    History,
    Observation,
    Over,
    Policy,
    ProveNetwork,
    Replace,
    Restart,
    StartNow,
    TellStop,
    Wait,
    decide,
)
from orchestrator.judging.classify import Cause
from orchestrator.scheduler import JobState

from .builders import POLICY, attempt, job, past, seen

S = JobState
GIVEN_UP = Over("failed", "the same error three times", Cause.WORKER_ERROR)
REQUEUED = job(state=S.PENDING, reason="BeginTime", restart=2)


def act(what: Observation, history: History | None = None, policy: Policy = POLICY) -> Action:
    """Decide, with the history of a run whose job 7 was submitted."""
    return decide(what, history or past(), policy)


def brief(action: Action) -> tuple[str, ...]:
    """Return what an action does, without its words for people."""
    match action:
        case Wait() | Over():
            return (type(action).__name__.lower(), action.state)
        case StartNow():
            return ("start now", action.job_id)
        case ProveNetwork():
            return ("prove network", str(action.attempt))
        case TellStop():
            return ("tell stop", action.job_id)
        case CancelJobs():
            return ("cancel", *action.job_ids)
        case Exclude():
            return ("exclude", action.job_id, *action.nodes)
        case Restart():
            return ("restart", "requeue" if action.job_id else "resubmit", action.cause)
        case Replace():
            return ("replace", "requeue" if action.requeue else "resubmit", action.cause)


def gone(**changes: Any) -> Observation:
    """The scheduler answers, and has no record of a job of the run."""
    return seen(**{"attempt": attempt(), **changes})


def accounted(state: JobState, **changes: Any) -> Observation:
    """Only accounting has a record of job 7."""
    return seen(job(state=state, in_queue=False), **{"attempt": attempt(), **changes})
