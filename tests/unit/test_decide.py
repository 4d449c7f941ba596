"""Who restarts what: state x evidence x progress x budget -> action."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.decide import (
    CANCEL_SETTLE_S,
    SETTLE_S,
    START_NOW_TRIES,
    SUBMIT_SETTLE_S,
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

from .builders import NOW, POLICY, attempt, finding, job, past, rank_error, seen

S = JobState
STATES = {"pending", "starting", "running", "stopping", "requeued", "waiting", "held"} | {
    *("finished", "failed", "cancelled", "unreachable", "unknown")
}


GIVEN_UP = Over("failed", "the same error three times", Cause.WORKER_ERROR)


def act(what: Observation, history: History | None = None, policy: Policy = POLICY) -> Action:
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


# --- requeued by the batch shell or by Slurm: take back the delay ------------------------------

REQUEUED = job(state=S.PENDING, reason="BeginTime", restart=2)


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


# --- the marks of the run ---------------------------------------------------------------------

EVERYTHING = [
    gone(),
    gone(silent="accounting is down"),
    seen(job()),
    seen(REQUEUED),
    seen(job(state=S.FAILED), attempt=attempt(outcome="failed", error=rank_error())),
    seen(job(state=S.CANCELLED)),
    seen(job(state=S.PREEMPTED)),
    seen(job(state=S.PENDING, reason="JobHeldUser")),
    accounted(S.NODE_FAIL),
    dataclasses.replace(gone(), jobs=None),
]


@pytest.mark.parametrize("what", EVERYTHING)
@pytest.mark.parametrize("history", [past(), past(gave_up=GIVEN_UP), past(asked_at=NOW - 1)])
@pytest.mark.parametrize("cancelled_at", [None, NOW - 1, NOW - 10_000])
def test_the_end_mark_beats_everything(
    what: Observation, history: History, cancelled_at: float | None
) -> None:
    done = dataclasses.replace(what, finished=True, cancelled_at=cancelled_at)
    action = act(done, history)
    assert isinstance(action, Over)
    assert (action.state, action.cause, action.record) == ("finished", Cause.FINISHED, False)


@pytest.mark.parametrize("what", EVERYTHING)
@pytest.mark.parametrize("history", [past(), past(gave_up=GIVEN_UP), past(asked_at=NOW - 1000)])
def test_the_cancel_mark_is_never_answered_by_a_start(what: Observation, history: History) -> None:
    action = act(dataclasses.replace(what, cancelled_at=NOW - 5), history)
    assert isinstance(action, Over | Wait | CancelJobs)
    assert not isinstance(action, Over) or action.state == "cancelled"


@pytest.mark.parametrize(
    ("jobs", "since_s", "expected"),
    [
        ((), 5, ("over", "cancelled")),
        ((job(state=S.CANCELLED),), 5, ("over", "cancelled")),
        ((job(state=S.FAILED),), 5, ("over", "cancelled")),
        ((job(),), 5, ("wait", "stopping")),
        ((job(state=S.COMPLETING),), 5, ("wait", "stopping")),
        ((job(),), CANCEL_SETTLE_S + 1, ("cancel", "7")),
        ((job(state=S.PENDING),), 5, ("cancel", "7")),
        # Requeued by the batch shell in the moment of the cancellation.
        ((REQUEUED,), 5, ("cancel", "7")),
        ((job(state=S.PENDING, reason="JobHeldUser"),), 5, ("cancel", "7")),
        # A duplicate that waits behind the first.
        ((job("8", S.PENDING), job("7")), 5, ("cancel", "8")),
        ((job("8", S.PENDING), job("7")), CANCEL_SETTLE_S + 1, ("cancel", "8", "7")),
    ],
)
def test_a_cancelled_run_ends_its_jobs(jobs: Any, since_s: float, expected: Any) -> None:
    assert brief(act(seen(*jobs, cancelled_at=NOW - since_s))) == expected


def test_a_cancel_mark_without_a_time_waits_for_the_save() -> None:
    assert brief(act(seen(job(), cancelled_at=0.0))) == ("wait", "stopping")


def test_a_run_that_was_given_up_stays_given_up() -> None:
    assert act(gone(), past(gave_up=GIVEN_UP)) == GIVEN_UP


# --- no answer: unknown is not dead -----------------------------------------------------------


@pytest.mark.parametrize("history", [past(), past(asked_at=NOW - 1000), past(submitted=())])
@pytest.mark.parametrize(
    "evidence", [None, attempt(), attempt(outcome="failed", error=rank_error())]
)
def test_no_answer_is_waited_out(history: History, evidence: Any) -> None:
    silent = dataclasses.replace(gone(attempt=evidence), jobs=None)
    assert brief(act(silent, history)) == ("wait", "unreachable")


@pytest.mark.parametrize("evidence", [None, attempt(), attempt(outcome="failed")])
def test_gone_from_the_queue_while_accounting_is_silent_is_waited_out(evidence: Any) -> None:
    action = act(gone(attempt=evidence, silent="Connection refused"))
    assert brief(action) == ("wait", "unreachable")
    assert isinstance(action, Wait)
    assert "Connection refused" in action.why


def test_silent_accounting_does_not_matter_while_the_queue_has_the_job() -> None:
    action = act(seen(job(state=S.PREEMPTED), silent="Connection refused"))
    assert brief(action) == ("restart", "requeue", Cause.PREEMPTED)


# --- ended, and the scheduler knows how -------------------------------------------------------

ENDS = {
    S.PREEMPTED: Cause.PREEMPTED,
    S.TIMEOUT: Cause.TIME_LIMIT,
    S.DEADLINE: Cause.TIME_LIMIT,
    S.NODE_FAIL: Cause.NODE_FAILURE,
    S.BOOT_FAIL: Cause.NODE_FAILURE,
    S.FAILED: Cause.WORKER_ERROR,
    S.COMPLETED: Cause.WORKER_ERROR,
    S.LAUNCH_FAILED: Cause.LAUNCH,
    S.RECONFIG_FAIL: Cause.LAUNCH,
    S.REVOKED: Cause.WORKER_ERROR,
}


@pytest.mark.parametrize(("state", "cause"), ENDS.items())
@pytest.mark.parametrize("evidence", [None, attempt(), attempt(noticed=True)])
def test_requeue_while_slurm_has_the_record_resubmit_after_it(
    state: JobState, cause: Cause, evidence: Any
) -> None:
    in_queue = seen(job(state=state), attempt=evidence)
    assert brief(act(in_queue)) == ("restart", "requeue", cause)
    assert brief(act(accounted(state, attempt=evidence))) == ("restart", "resubmit", cause)


@pytest.mark.parametrize("state", [s for s in S if s.ended])
@pytest.mark.parametrize("ended_s", [0.0, SETTLE_S - 0.5])
def test_a_fresh_end_is_not_acted_on(state: JobState, ended_s: float) -> None:
    # A requeue by Slurm itself passes through an ended state.
    action = act(seen(job(state=state, end=NOW - ended_s), attempt=attempt()))
    assert brief(action) == ("wait", "stopping")


@pytest.mark.parametrize("in_queue", [True, False])
@pytest.mark.parametrize("restarts", [(), ((Cause.PREEMPTED, None),)])
def test_cancelled_by_a_user_is_final(in_queue: bool, restarts: Any) -> None:
    ended = job(state=S.CANCELLED, in_queue=in_queue, reason="CANCELLED by 20001")
    action = act(seen(ended, attempt=attempt(noticed=True)), past(restarts=restarts))
    assert isinstance(action, Over)
    assert (action.state, action.cause, action.record) == ("cancelled", Cause.CANCELLED, True)
    assert "by 20001" in action.why


@pytest.mark.parametrize(
    "evidence",
    [
        attempt(outcome="stopped", noticed=True, action="none"),
        attempt(error=rank_error()),
        attempt(outcome="failed"),
    ],
)
def test_cancelled_is_final_whatever_the_workers_say(evidence: Any) -> None:
    assert brief(act(seen(job(state=S.CANCELLED), attempt=evidence))) == ("over", "cancelled")


def test_out_of_memory_stops() -> None:
    action = act(seen(job(state=S.OUT_OF_MEMORY), attempt=attempt()))
    assert isinstance(action, Over)
    assert (action.state, action.cause, action.record) == ("failed", Cause.OUT_OF_MEMORY, True)


def test_no_usable_checkpoint_stops() -> None:
    said = attempt(outcome="no_checkpoint", reason="all 3 checkpoints are damaged")
    action = act(seen(job(state=S.FAILED), attempt=said))
    assert isinstance(action, Over)
    assert (action.state, action.cause, action.why) == ("failed", Cause.CHECKPOINT, said.reason)
    assert action.record


def test_notices_without_progress_stop() -> None:
    said = attempt(action="stop", why="stopped 3 times in a row", outcome="stopped", noticed=True)
    action = act(seen(job(state=S.FAILED), attempt=said))
    assert isinstance(action, Over)
    assert (action.state, action.cause, action.record) == ("failed", Cause.NO_PROGRESS, True)
    assert said.why in action.why
    assert "lead_s" in action.why


@pytest.mark.parametrize("state", [S.FAILED, S.COMPLETED, S.TIMEOUT, S.PREEMPTED])
def test_saved_but_not_put_back_is_restarted_without_a_budget(state: JobState) -> None:
    # The batch shell saw another state than RUNNING, or Slurm refused the requeue.
    said = attempt(outcome="stopped", noticed=True, action="none", saved_step=40)
    history = past(restarts=((Cause.NOTICE, 40),) * 50)
    action = act(seen(job(state=state), attempt=said, checkpoint_step=40), history)
    assert brief(action) == ("restart", "requeue", Cause.NOTICE)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.NODE_FAILURE])
def test_what_the_cluster_does_has_no_budget(cause: Cause) -> None:
    state = next(state for state, of in ENDS.items() if of is cause)
    history = past(restarts=((cause, None),) * 50)
    assert brief(act(seen(job(state=state)), history)) == ("restart", "requeue", cause)


# --- gone from the queue, and from accounting -------------------------------------------------


def test_gone_without_a_word_is_submitted_again() -> None:
    assert brief(act(gone())) == ("restart", "resubmit", Cause.GONE)


def test_a_run_that_was_never_submitted_is_submitted() -> None:
    what = gone(attempt=None)
    assert brief(act(what, past(submitted=()))) == ("restart", "resubmit", Cause.GONE)


def test_a_job_that_heard_a_notice_and_was_forgotten_is_not_resurrected() -> None:
    # scancel, the time limit and a lost node look like this; the first one is final.
    said = attempt(noticed=True, action="none", why="Slurm says COMPLETING", outcome="stopped")
    action = act(gone(attempt=said))
    assert isinstance(action, Over)
    assert (action.state, action.record) == ("failed", True)
    assert "fsdpq requeue" in action.why


def test_an_error_is_still_told_when_the_job_is_forgotten() -> None:
    said = attempt(error=rank_error("ValueError: bad batch"), action="none")
    action = act(gone(attempt=said))
    assert brief(action) == ("restart", "resubmit", Cause.WORKER_ERROR)
    assert "rank 3 on n2 failed: ValueError: bad batch" in action.why


# --- a submission without an answer -----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_s", "expected"),
    [
        (0, ("wait", "waiting")),
        (SUBMIT_SETTLE_S - 1, ("wait", "waiting")),
        (SUBMIT_SETTLE_S + 1, ("restart", "resubmit", Cause.GONE)),
    ],
)
def test_an_unanswered_submission_is_looked_for_first(asked_s: float, expected: Any) -> None:
    history = past(submitted=(), asked_at=NOW - asked_s)
    assert brief(act(gone(attempt=None), history)) == expected


def test_an_unanswered_submission_that_turns_up_is_the_job() -> None:
    history = past(submitted=(), asked_at=NOW - 5)
    assert brief(act(seen(job(state=S.PENDING)), history)) == ("wait", "pending")


@pytest.mark.parametrize("in_queue", [True, False])
def test_an_unanswered_resubmission_is_looked_for_although_the_old_job_is_known(
    in_queue: bool,
) -> None:
    history = past(restarts=((Cause.PREEMPTED, None),), asked_at=NOW - 5)
    what = seen(job("7", S.PREEMPTED, in_queue=in_queue), attempt=attempt())
    assert brief(act(what, history)) == ("wait", "waiting")


# --- budgets and delays -----------------------------------------------------------------------

COUNTED = [Cause.WORKER_ERROR, Cause.TIME_LIMIT, Cause.GONE]


def failing(cause: Cause, step: int | None, ended_s: float = 10_000.0) -> Observation:
    """The run has just ended for ``cause``, with the newest checkpoint of ``step``."""
    if cause is Cause.GONE:
        return gone(checkpoint_step=step, attempt=attempt(ended_at=NOW - ended_s))
    state = S.TIMEOUT if cause is Cause.TIME_LIMIT else S.FAILED
    said = attempt(error=rank_error()) if cause is Cause.WORKER_ERROR else attempt()
    return seen(job(state=state, end=NOW - ended_s), attempt=said, checkpoint_step=step)


@pytest.mark.parametrize("cause", COUNTED)
@pytest.mark.parametrize(
    ("restarts", "step", "given_up"),
    [
        ([], None, False),
        ([None], None, False),
        ([None, None], None, False),
        ([None, None, None], None, True),
        ([None, None, None, None], None, True),
        ([None, None, None], 10, False),  # it got on since
        ([10, 10, 10], 10, True),
        ([10, 10, 20], 20, False),  # it got on between
        ([10, 20, 20, 20], 20, True),
        ([20, 10, 10], 10, False),  # fell back to an older one: two restarts from there
    ],
)
def test_the_budget_starts_anew_with_each_newer_checkpoint(
    cause: Cause, restarts: list[int | None], step: int | None, given_up: bool
) -> None:
    history = past(restarts=tuple((cause, before) for before in restarts))
    action = act(failing(cause, step), history)
    if given_up:
        assert isinstance(action, Over)
        assert (action.state, action.cause, action.record) == ("failed", cause, True)
        assert "fsdpq requeue" in action.why
    else:
        assert isinstance(action, Restart)
        assert action.cause is cause


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_budget_is_the_policys(k: int) -> None:
    policy = Policy(max_no_progress=k, delay_s=0)
    spent = past(restarts=((Cause.WORKER_ERROR, 5),) * k)
    left = past(restarts=((Cause.WORKER_ERROR, 5),) * (k - 1))
    what = failing(Cause.WORKER_ERROR, 5)
    assert isinstance(act(what, spent, policy), Over)
    assert isinstance(act(what, left, policy), Restart)


def test_different_errors_without_progress_share_a_budget() -> None:
    restarts = ((Cause.GONE, 5), (Cause.TIME_LIMIT, 5), (Cause.WORKER_ERROR, 5))
    assert isinstance(act(failing(Cause.WORKER_ERROR, 5), past(restarts=restarts)), Over)


def test_a_restart_by_hand_starts_the_budget_anew() -> None:
    restarts = ((Cause.WORKER_ERROR, 5),) * 3 + (("by hand", 5),)
    assert isinstance(act(failing(Cause.WORKER_ERROR, 5), past(restarts=restarts)), Restart)


@pytest.mark.parametrize(("idle", "delay_s"), [(0, 0), (1, 15), (2, 30)])
@pytest.mark.parametrize("cause", COUNTED)
def test_the_delay_grows(cause: Cause, idle: int, delay_s: float) -> None:
    history = past(restarts=((cause, 5),) * idle)
    after = max(delay_s, SETTLE_S) + 1
    assert isinstance(act(failing(cause, 5, after), history), Restart)
    if delay_s:
        action = act(failing(cause, 5, delay_s - 1), history)
        assert brief(action) == ("wait", "waiting")
        assert isinstance(action, Wait)
        assert "in 1 s" in action.why


@pytest.mark.parametrize(
    ("reason", "soon"), [("", True), ("NonZeroExitCode", True), ("Priority", False)]
)
def test_a_job_that_was_put_back_is_looked_at_again_soon(reason: str, soon: bool) -> None:
    """Slurm shows the reason of its last end until its scheduler comes by."""
    action = act(seen(job(state=S.PENDING, restart=1, reason=reason)))
    assert isinstance(action, Wait)
    assert (action.state, action.soon) == ("requeued", soon)


# --- what a claim is taken for ----------------------------------------------------------------


def test_each_end_has_a_key_of_its_own() -> None:
    error = attempt(error=rank_error())
    ends = [
        (seen(job(state=S.FAILED, restart=0), attempt=error), past()),
        (seen(job(state=S.FAILED, restart=1), attempt=error), past()),
        (seen(job("8", S.FAILED, restart=0)), past(submitted=("7", "8"))),
        (gone(), past()),
        (gone(attempt=None), past(submitted=())),
    ]
    actions = [act(*end) for end in ends]
    keys = [action.key for action in actions if isinstance(action, Restart)]
    assert len(set(keys)) == len(ends)


def test_the_same_end_has_the_same_key_for_every_watcher() -> None:
    what = seen(job(state=S.PREEMPTED), attempt=attempt())
    later = dataclasses.replace(what, now=NOW + 100)
    first, second = act(what), act(later)
    assert isinstance(first, Restart)
    assert isinstance(second, Restart)
    assert first.key == second.key


def test_a_key_is_a_file_name() -> None:
    action = act(seen(job("57829110_[5-100]", S.FAILED)))
    assert isinstance(action, Restart)
    assert "/" not in action.key


# --- whose evidence an attempt is -------------------------------------------------------------


def test_a_job_that_never_started_is_not_blamed_for_the_attempt_before_it() -> None:
    old = attempt(job_id="7", error=rank_error("RuntimeError: old"))
    action = act(seen(job("8", S.NODE_FAIL), attempt=old), past(submitted=("7", "8")))
    assert isinstance(action, Restart)
    assert action.cause is Cause.NODE_FAILURE


def test_an_end_before_the_script_started_points_to_the_log() -> None:
    action = act(seen(job(state=S.FAILED, exit_code=0, signal=53)))
    assert isinstance(action, Restart)
    assert "signal 53" in action.why
    assert "batch.log" in action.why


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (S.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY),
        (S.NODE_FAIL, Cause.NODE_FAILURE),
        (S.PREEMPTED, Cause.PREEMPTED),
    ],
)
def test_slurms_own_word_on_an_end_beats_the_errors_of_survivors(
    state: JobState, cause: Cause
) -> None:
    echo = attempt(error=rank_error("RuntimeError: Connection closed by peer"), outcome="failed")
    action = act(seen(job(state=state), attempt=echo))
    assert isinstance(action, Over | Restart)
    assert action.cause is cause


def test_a_cancelled_run_is_not_over_while_nobody_answers() -> None:
    silent = dataclasses.replace(gone(cancelled_at=NOW - 5), jobs=None)
    assert brief(act(silent)) == ("wait", "unreachable")


def test_a_run_that_was_given_up_and_is_started_by_hand_runs() -> None:
    assert brief(act(seen(job("8")), past(gave_up=GIVEN_UP))) == ("wait", "running")


def test_preemptions_between_errors_do_not_refill_the_budget() -> None:
    restarts = ((Cause.WORKER_ERROR, 5), (Cause.PREEMPTED, 5)) * 3
    assert isinstance(act(failing(Cause.WORKER_ERROR, 5), past(restarts=restarts)), Over)


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


@pytest.mark.parametrize("state", [S.RUNNING, S.PENDING, S.REQUEUED, S.UNKNOWN])
def test_what_accounting_does_not_call_an_end_is_none(state: JobState) -> None:
    # A word that we do not know, or a job that the queue has lost and the database has not.
    assert isinstance(act(accounted(state)), Wait)


# --- what came up later -----------------------------------------------------------------------


def test_a_run_directory_that_does_not_read_waits() -> None:
    action = act(Observation(now=NOW, trouble="checkpoints: Permission denied"))
    assert brief(action) == ("wait", "unknown")
    assert "Permission denied" in action.why


def test_refused_submissions_are_tried_again_later_and_later_and_not_for_ever() -> None:
    what = accounted(S.PREEMPTED)
    said = "QOSMaxSubmitJobPerUserLimit"
    for count, delay_s in ((1, 300), (2, 600), (4, 2400)):
        recent = past(refused=((NOW - delay_s + 1, said),) * count)
        assert brief(act(what, recent)) == ("wait", "waiting")
        long_ago = past(refused=((NOW - delay_s - 1, said),) * count)
        assert isinstance(act(what, long_ago), Restart)
    action = act(what, past(refused=((NOW - 9999, said),) * 5))
    assert isinstance(action, Over)
    assert action.record
    assert said in action.why


def test_a_log_that_slurm_could_not_open_is_named() -> None:
    action = act(seen(job(state=S.FAILED, signal=53)))
    assert "could not open batch.log" in action.why


def test_an_attempt_of_an_earlier_start_of_the_same_job_is_not_its_evidence() -> None:
    earlier = attempt(outcome="stopped", restart=0)
    action = act(seen(job(state=S.FAILED, restart=1), attempt=earlier))
    assert isinstance(action, Restart)
    assert action.cause is Cause.WORKER_ERROR


def test_a_submission_without_an_answer_that_has_shown_up_is_judged_by_what_it_left() -> None:
    """Its user may have cancelled it since."""
    asked = past(submitted=(), asked_at=NOW - 9000)
    began = attempt(started_at=NOW - 8000.0)
    action = act(seen(job(state=S.CANCELLED, in_queue=False), attempt=began), asked)
    assert brief(action) == ("over", "cancelled")
    assert brief(act(gone(attempt=None), asked))[0] == "restart"


def test_who_cancelled_is_accountings_word_and_never_the_queues_reason() -> None:
    action = act(seen(job(state=S.CANCELLED, reason="BeginTime")))
    assert "BeginTime" not in action.why
    action = act(seen(job(state=S.CANCELLED, reason="CANCELLED by 20001", in_queue=False)))
    assert "by 20001" in action.why


@pytest.mark.parametrize("error", ["SpecError: data.text_files: nothing matches", "SyntaxError: x"])
def test_a_mistake_that_no_restart_mends_is_not_repeated(error: str) -> None:
    action = act(seen(job(state=S.FAILED), attempt=attempt(error=rank_error(error))))
    assert isinstance(action, Over)
    assert action.cause is Cause.CONFIGURATION


def test_what_a_restart_only_repeats_is_given_up_with_what_to_do() -> None:
    error = "OutOfMemoryError: CUDA out of memory"
    action = act(seen(job(state=S.FAILED), attempt=attempt(error=rank_error(error))))
    assert isinstance(action, Over)
    assert action.record


@pytest.mark.parametrize(
    "cause", [Cause.LAUNCH, Cause.NODE_CHECK, Cause.GPU_FAILURE, Cause.FABRIC, Cause.HANG]
)
def test_what_may_be_a_nodes_fault_is_tried_again_but_not_for_ever(cause: Cause) -> None:
    what = seen(job(state=S.FAILED), attempt=attempt(findings=(finding("x", cause),)))
    assert isinstance(act(what), Restart)
    assert isinstance(act(what, past(restarts=((cause, None),) * 10)), Over)
