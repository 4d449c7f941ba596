"""The scheduler knows how a job ended: what is final, what comes back, whose evidence counts."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.decide import SETTLE_S, Over, Restart
from orchestrator.judging.classify import Cause
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, finding, job, past, rank_error, seen
from .decisions import S, accounted, act, brief

# --- what comes back --------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    "cause", [Cause.LAUNCH, Cause.NODE_CHECK, Cause.GPU_FAILURE, Cause.FABRIC, Cause.HANG]
)
def test_what_may_be_a_nodes_fault_is_tried_again_but_not_for_ever(cause: Cause) -> None:
    what = seen(job(state=S.FAILED), attempt=attempt(findings=(finding("x", cause),)))
    assert isinstance(act(what), Restart)
    assert isinstance(act(what, past(restarts=((cause, None),) * 10)), Over)


# --- what is final ----------------------------------------------------------------------------


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


def test_who_cancelled_is_accountings_word_and_never_the_queues_reason() -> None:
    action = act(seen(job(state=S.CANCELLED, reason="BeginTime")))
    assert "BeginTime" not in action.why
    action = act(seen(job(state=S.CANCELLED, reason="CANCELLED by 20001", in_queue=False)))
    assert "by 20001" in action.why


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


# --- whose evidence an attempt is -------------------------------------------------------------


def test_a_job_that_never_started_is_not_blamed_for_the_attempt_before_it() -> None:
    old = attempt(job_id="7", error=rank_error("RuntimeError: old"))
    action = act(seen(job("8", S.NODE_FAIL), attempt=old), past(submitted=("7", "8")))
    assert isinstance(action, Restart)
    assert action.cause is Cause.NODE_FAILURE


def test_an_attempt_of_an_earlier_start_of_the_same_job_is_not_its_evidence() -> None:
    earlier = attempt(outcome="stopped", restart=0)
    action = act(seen(job(state=S.FAILED, restart=1), attempt=earlier))
    assert isinstance(action, Restart)
    assert action.cause is Cause.WORKER_ERROR


def test_an_end_before_the_script_started_points_to_the_log() -> None:
    action = act(seen(job(state=S.FAILED, exit_code=0, signal=53)))
    assert isinstance(action, Restart)
    assert "signal 53" in action.why
    assert "batch.log" in action.why


def test_a_log_that_slurm_could_not_open_is_named() -> None:
    action = act(seen(job(state=S.FAILED, signal=53)))
    assert "could not open batch.log" in action.why


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
