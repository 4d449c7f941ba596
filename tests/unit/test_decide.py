"""Jobs that live are waited for, and every action has a reason and a state that is promised."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.decide import START_NOW_TRIES, Observation, Over, Restart, StartNow, Wait
from orchestrator.judging.classify import Cause
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, job, past, rank_error, seen
from .decisions import REQUEUED, S, accounted, act, brief

STATES = {"pending", "starting", "running", "stopping", "requeued", "waiting", "held"} | {
    *("finished", "failed", "cancelled", "unreachable", "unknown")
}


# --- a job is alive: nothing is restarted -----------------------------------------------------

ALIVE = {
    S.RUNNING: "running",
    S.COMPLETING: "stopping",
    S.CONFIGURING: "starting",
    S.PENDING: "pending",
    S.SUSPENDED: "running",
    S.RESIZING: "running",
    S.SIGNALING: "running",
    S.STAGE_OUT: "running",
    S.STOPPED: "running",
    S.REQUEUE_HOLD: "held",
    S.SPECIAL_EXIT: "held",
    S.RESV_DEL_HOLD: "held",
    S.UNKNOWN: "unknown",
}


@pytest.mark.parametrize(("state", "shown"), ALIVE.items())
def test_a_live_job_is_waited_for(state: JobState, shown: str) -> None:
    assert brief(act(seen(job(state=state)))) == ("wait", shown)


@pytest.mark.parametrize("state", [s for s in S if not s.ended])
@pytest.mark.parametrize(
    "evidence",
    [
        None,
        attempt(outcome="failed", error=rank_error()),
        attempt(outcome="stopped", noticed=True, action="requeue"),
        attempt(action="none", noticed=True),
        attempt(action="stop", why="stopped 3 times"),
    ],
)
def test_no_live_job_is_ever_restarted(state: JobState, evidence: Any) -> None:
    action = act(seen(job(state=state), attempt=evidence, checkpoint_step=3))
    assert isinstance(action, Wait)
    assert action.state in STATES


@pytest.mark.parametrize("state", [s for s in S if s.ended])
def test_an_ended_job_beside_a_live_one_is_history(state: JobState) -> None:
    both = seen(job("8", S.RUNNING), job("7", state), attempt=attempt())
    assert brief(act(both)) == ("wait", "running")


@pytest.mark.parametrize(
    ("reason", "restart", "shown"),
    [
        ("Priority", 0, "pending"),
        ("Resources", 0, "pending"),
        ("Dependency", 0, "pending"),
        ("", 0, "pending"),
        ("PartitionTimeLimit", 0, "pending"),
        ("QOSMaxWallDurationPerJobLimit", 0, "pending"),
        ("Resources", 1, "requeued"),
        ("JobHeldUser", 0, "held"),
        ("JobHeldAdmin", 0, "held"),
        ("job requeued in held state", 2, "held"),
        ("BadConstraints", 0, "held"),
        ("DependencyNeverSatisfied", 0, "held"),
    ],
)
def test_why_a_job_is_pending(reason: str, restart: int, shown: str) -> None:
    action = act(seen(job(state=S.PENDING, reason=reason, restart=restart)))
    assert brief(action) == ("wait", shown)
    assert isinstance(action, Wait)
    assert reason in action.why


def test_a_held_job_says_what_to_do() -> None:
    action = act(seen(job(state=S.PENDING, reason="job requeued in held state", restart=1)))
    assert isinstance(action, Wait)
    assert "scontrol release" in action.why
    assert "7" in action.why


@pytest.mark.parametrize("state", [S.RUNNING, S.PENDING, S.REQUEUED, S.UNKNOWN])
def test_what_accounting_does_not_call_an_end_is_none(state: JobState) -> None:
    # A word that we do not know, or a job that the queue has lost and the database has not.
    assert isinstance(act(accounted(state)), Wait)


def test_a_run_directory_that_does_not_read_waits() -> None:
    action = act(Observation(now=NOW, trouble="checkpoints: Permission denied"))
    assert brief(action) == ("wait", "unknown")
    assert "Permission denied" in action.why


# --- requeued by the batch shell or by Slurm: take back the delay -----------------------------


@pytest.mark.parametrize(
    "evidence",
    [
        attempt(outcome="stopped", noticed=True, action="requeue", saved_step=40),  # notice, saved
        attempt(noticed=True),  # preempted with PreemptMode=REQUEUE, not saved
        attempt(),  # a lost node
    ],
)
def test_a_requeued_job_is_started_now(evidence: Any) -> None:
    action = act(seen(REQUEUED, attempt=evidence))
    assert isinstance(action, StartNow)
    assert (action.job_id, action.restart) == ("7", 2)


@pytest.mark.parametrize(
    ("hurried", "again"),
    [
        ([], True),
        ([("7", 2)] * (START_NOW_TRIES - 1), True),
        ([("7", 2)] * START_NOW_TRIES, False),
        ([("7", 1)] * START_NOW_TRIES, True),  # those were for an earlier requeue
        ([("6", 2)] * START_NOW_TRIES, True),
    ],
)
def test_the_start_is_asked_for_a_few_times(hurried: list[Any], again: bool) -> None:
    action = act(seen(REQUEUED), past(hurried=tuple(hurried)))
    assert brief(action) == (("start now", "7") if again else ("wait", "requeued"))


@pytest.mark.parametrize(
    ("reason", "soon"), [("", True), ("NonZeroExitCode", True), ("Priority", False)]
)
def test_a_job_that_was_put_back_is_looked_at_again_soon(reason: str, soon: bool) -> None:
    """Slurm shows the reason of its last end until its scheduler comes by."""
    action = act(seen(job(state=S.PENDING, restart=1, reason=reason)))
    assert isinstance(action, Wait)
    assert (action.state, action.soon) == ("requeued", soon)


# --- all of it at once ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, *S])
@pytest.mark.parametrize("in_queue", [True, False])
@pytest.mark.parametrize("restart", [None, 0, 3])
def test_every_action_has_a_reason_and_a_state_that_is_promised(
    state: JobState | None, in_queue: bool, restart: int | None
) -> None:
    jobs = () if state is None else (job(state=state, in_queue=in_queue, restart=restart),)
    evidence = [None, attempt(), attempt(outcome="stopped", action="none", noticed=True, why="x")]
    for said in evidence:
        for history in (past(), past(restarts=((Cause.WORKER_ERROR, None),) * 9)):
            action = act(seen(*jobs, attempt=said), history)
            assert action.why
            if isinstance(action, Wait | Over):
                assert action.state in STATES
            if isinstance(action, Restart):
                assert state is None or state.ended or not in_queue
                assert action.job_id in (None, "7")
                assert in_queue or action.job_id is None
