"""Where and how large: bad nodes, elastic sizes, held jobs, hangs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.decide import (
    COLLECT_S,
    CancelJobs,
    Exclude,
    History,
    Observation,
    Over,
    Replace,
    Restart,
    Restarted,
    StartNow,
    Stopped,
    Wait,
    decide,
)
from orchestrator.decide.ended import STOPPED_S
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.judging.nodes import Suspicion
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.attempt import Hang
from orchestrator.scheduler import JobRecord, JobState

from .builders import NOW, POLICY, attempt, job, past, rank_error, seen

S = JobState
N7 = Suspicion("n7", Cause.GPU_FAILURE, NOW - 10, 1, proof=True)
REQUEUED = job(state=S.PENDING, reason="BeginTime", restart=1, submit=NOW - 5)


def act(what: Observation, history: History | None = None, policy: Policy = POLICY) -> Any:
    return decide(what, history or past(), policy)


# --- bad nodes --------------------------------------------------------------------------------


def test_a_requeued_job_leaves_out_a_bad_node_before_its_delay_is_taken_back() -> None:
    action = act(seen(REQUEUED), past(suspicions=(N7,)))
    assert isinstance(action, Exclude)
    assert (action.job_id, action.nodes) == ("7", ("n7",))
    assert "n7 (GPU failure)" in action.why
    told = past(suspicions=(N7,), excluded=(("7", ("n7",)),))
    assert isinstance(act(seen(REQUEUED), told), StartNow)


def test_a_job_that_refuses_to_leave_it_out_starts_all_the_same() -> None:
    history = past(suspicions=(N7,), unexcludable=("7",) * 3)
    assert isinstance(act(seen(REQUEUED), history), StartNow)


WEAK = tuple(Suspicion("n5", Cause.WORKER_ERROR, NOW - 10, number) for number in (1, 2))
LEFT_OUT = past(suspicions=(N7, *WEAK), excluded=(("7", ("n7", "n5")),))


def starved(waited_s: float, reason: str = "Resources") -> Observation:
    return seen(job(state=S.PENDING, reason=reason, restart=1, submit=NOW - waited_s))


def test_a_job_that_finds_no_nodes_takes_those_that_are_only_suspected() -> None:
    policy = dataclasses.replace(POLICY, let_go_s=600.0)
    action = act(starved(601), LEFT_OUT, policy)
    assert isinstance(action, Exclude)
    assert (action.nodes, action.let_go) == (("n7",), ("n5",))
    assert "n5 (worker error, 2 times) again" in action.why
    assert isinstance(act(starved(599), LEFT_OUT, policy), Wait)
    assert isinstance(act(starved(601, "JobArrayTaskLimit"), LEFT_OUT, policy), Wait)


def test_a_node_that_is_proven_bad_stays_out_however_long_it_takes() -> None:
    history = past(suspicions=(N7,), excluded=(("7", ("n7",)),))
    assert isinstance(act(starved(1e5), history), Wait)


def test_what_another_job_was_told_does_not_count() -> None:
    history = past(suspicions=(N7,), excluded=(("6", ("n7",)),))
    assert isinstance(act(seen(REQUEUED), history), Exclude)


def test_a_job_that_never_started_is_left_as_its_user_asked_for_it() -> None:
    fresh = job(state=S.PENDING, reason="Priority", restart=0)
    assert isinstance(act(seen(fresh), past(suspicions=(N7,))), Wait)


def test_a_restart_without_a_bad_node_is_a_new_job() -> None:
    failed = seen(job(state=S.FAILED), attempt=attempt(2, error=rank_error()))
    action = act(failed, past(suspicions=(N7,)))
    assert isinstance(action, Restart)
    assert (action.job_id, action.exclude) == (None, ("n7",))
    assert "Without n7 (GPU failure)" in action.why
    told = past(suspicions=(N7,), excluded=(("7", ("n7",)),))
    assert act(failed, told).job_id == "7"


# --- elastic ----------------------------------------------------------------------------------

ELASTIC = dataclasses.replace(POLICY, sizes=(4, 3, 2), patience_s=600.0)


def waiting(waited_s: float, **changes: Any) -> JobRecord:
    return job(state=S.PENDING, **{"reason": "Resources", "submit": NOW - waited_s, **changes})


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "ReqNodeNotAvail, UnavailableNodes:n1"]
)
@pytest.mark.parametrize("restart", [0, 2])
def test_a_starved_run_goes_on_with_fewer_nodes(reason: str, restart: int) -> None:
    action = act(seen(waiting(601, reason=reason, restart=restart)), policy=ELASTIC)
    assert isinstance(action, Replace)
    assert (action.job_id, action.nodes, action.cause) == ("7", 3, Cause.RESIZED)
    assert not action.requeue
    assert reason in action.why


@pytest.mark.parametrize(
    ("pending", "history"),
    [
        (waiting(599), past()),  # not yet
        (waiting(6000, reason="Dependency"), past()),  # fewer nodes would not help
        (waiting(6000, reason="QOSMaxWallDurationPerJobLimit"), past()),
        (waiting(6000, submit=None), past()),
        (waiting(6000), past(sizes=(("7", 2),))),  # as small as it may be
    ],
)
def test_a_run_is_not_shrunk(pending: JobRecord, history: History) -> None:
    assert isinstance(act(seen(pending), history, ELASTIC), Wait)


def test_a_run_that_is_not_elastic_waits_for_ever() -> None:
    assert isinstance(act(seen(waiting(10**7))), Wait)


def test_it_shrinks_step_by_step() -> None:
    assert act(seen(waiting(601)), past(sizes=(("7", 3),)), ELASTIC).nodes == 2


def test_a_shrunk_run_grows_back_when_it_is_requeued() -> None:
    requeued = waiting(1, reason="BeginTime", restart=1)
    action = act(seen(requeued), past(sizes=(("7", 2),)), ELASTIC)
    assert isinstance(action, Replace)
    assert (action.nodes, action.cause) == (4, Cause.RESIZED)


def test_a_shrunk_job_that_has_not_started_yet_keeps_its_size() -> None:
    assert isinstance(act(seen(waiting(1)), past(sizes=(("7", 2),)), ELASTIC), Wait)


def test_a_shrunk_run_grows_back_when_it_is_restarted() -> None:
    failed = seen(job(state=S.FAILED), attempt=attempt(error=rank_error()))
    action = act(failed, past(sizes=(("7", 2),)), ELASTIC)
    assert isinstance(action, Restart)
    assert (action.job_id, action.nodes) == (None, None)


# --- a watcher that was killed between ending a job and submitting another --------------------

STOPPED = Stopped("7", Cause.RESIZED, "on with 3 nodes", 3, NOW - 62)


@pytest.mark.parametrize(
    "jobs", [(job(state=S.CANCELLED),), (job(state=S.CANCELLED, in_queue=False),), ()]
)
def test_a_job_that_a_watcher_ended_was_not_cancelled_by_its_user(jobs: Any) -> None:
    action = act(seen(*jobs), past(stopped=(STOPPED,)), ELASTIC)
    assert isinstance(action, Restart)
    assert (action.job_id, action.nodes, action.cause) == (None, 3, Cause.RESIZED)


@pytest.mark.parametrize(
    "after",
    [
        job(
            state=S.CANCELLED, end=NOW - 62 + STOPPED_S + 1
        ),  # it went on, and then its user did it
        job(state=S.FAILED),
        job(state=S.OUT_OF_MEMORY),
    ],
)
def test_what_became_of_a_job_that_was_not_ended_after_all_is_not_ours(after: JobRecord) -> None:
    """The watcher was killed before scancel, or Slurm did not hear it, and nodes became free."""
    what = dataclasses.replace(seen(after), now=NOW + 10_000)
    action = act(what, past(stopped=(STOPPED,)), ELASTIC)
    assert not isinstance(action, Restart) or action.cause is not Cause.RESIZED
    if after.state is S.CANCELLED:
        assert isinstance(action, Over)
        assert action.state == "cancelled"


def test_a_replacement_that_is_refused_is_tried_again_later_and_not_for_ever() -> None:
    ended = seen(job(state=S.CANCELLED))
    once = past(stopped=(STOPPED,), refused=((NOW - 10, "AssocMaxSubmitJobLimit"),))
    assert isinstance(act(ended, once, ELASTIC), Wait)
    often = past(stopped=(STOPPED,), refused=((NOW - 9999, "AssocMaxSubmitJobLimit"),) * 5)
    action = act(ended, often, ELASTIC)
    assert isinstance(action, Over)
    assert "AssocMaxSubmitJobLimit" in action.why


def test_what_slurm_keeps_of_a_submission_that_it_refused_is_no_job_of_the_run() -> None:
    """22.05 keeps a FAILED record of it, newer than the job that a watcher had ended."""
    kept = job("8", S.FAILED, reason="BadConstraints", end=NOW - 50)
    action = act(seen(kept, job(state=S.CANCELLED)), past(stopped=(STOPPED,)), ELASTIC)
    assert isinstance(action, Restart)
    assert action.cause is Cause.RESIZED


def test_a_finished_run_whose_rank_does_not_end_is_ended() -> None:
    live = seen(job(), finished=True, stalled=True)
    assert act(live) == CancelJobs(("7",), act(live).why)
    assert isinstance(act(seen(job(), finished=True)), Over)
    assert isinstance(act(seen(finished=True, stalled=True)), Over)


def test_the_job_in_its_place_may_be_cancelled_by_its_user() -> None:
    history = past(submitted=("7", "8"), stopped=(STOPPED,))
    action = act(seen(job("8", S.CANCELLED)), history, ELASTIC)
    assert isinstance(action, Over)
    assert action.state == "cancelled"


def test_one_that_is_not_ended_yet_is_ended_again() -> None:
    action = act(seen(waiting(601)), past(stopped=(STOPPED,)), ELASTIC)
    assert isinstance(action, Replace)
    assert action.nodes == 3


def test_an_unanswered_submission_of_another_size_is_repeated_with_that_size() -> None:
    history = past(submitted=("7",), stopped=(STOPPED,), asked_at=NOW - 9000, asked_nodes=3)
    action = act(seen(job(state=S.CANCELLED)), history, ELASTIC)
    assert isinstance(action, Restart)
    assert action.nodes == 3


# --- held -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_that_a_node_could_not_start_gets_a_new_one(reason: str) -> None:
    held = job(state=S.PENDING, reason=reason, restart=1)
    action = act(seen(held))
    assert isinstance(action, Replace)
    assert (action.cause, action.requeue) == (Cause.LAUNCH, False)
    used_up = past(restarts=[(Cause.LAUNCH, None)] * 5)
    action = act(seen(held), used_up)
    assert isinstance(action, Wait)
    assert action.state == "held"
    assert "scontrol release 7" in action.why


def test_a_job_that_slurm_put_back_and_can_never_start_gets_a_new_one() -> None:
    """Seen after a cloud took a node away: aws-parallelcluster 5731 and 6641."""
    stuck = job(state=S.PENDING, reason="BadConstraints", restart=1)
    assert isinstance(act(seen(stuck)), Replace)
    assert isinstance(act(seen(dataclasses.replace(stuck, restart=0))), Wait)


# --- hangs ------------------------------------------------------------------------------------


def hung(overdue_s: float = COLLECT_S + 1, **changes: Any) -> Observation:
    hang = Hang(
        why="no rank has got on for 400 s", idle_s=300 + overdue_s, over_s=overdue_s, nodes=("n2",)
    )
    return seen(job(nodes="n[1-2]", restart=0), attempt=attempt(hang=hang), **changes)


def test_a_hung_attempt_is_ended_once_its_ranks_have_said_where_they_stand() -> None:
    assert isinstance(act(hung(COLLECT_S - 1)), Wait)
    action = act(hung())
    assert isinstance(action, Replace)
    assert (action.job_id, action.requeue, action.cause) == ("7", True, Cause.HANG)
    assert "no rank has got on" in action.why
    assert action.suspects == ("n2",)


def test_a_run_that_hangs_again_and_again_is_given_up_and_its_job_ended() -> None:
    action = act(hung(), past(restarts=[(Cause.HANG, None)] * 3))
    assert isinstance(action, Over)
    assert (action.state, action.record, action.job_id) == ("failed", True, "7")
    assert "no rank has got on" in action.why


def hung_after(exception: str) -> Observation:
    """A hang where rank 3 on n2 has written down why it failed."""
    what = hung()
    assert what.attempt is not None
    failed = dataclasses.replace(what.attempt, error=rank_error(exception))
    return dataclasses.replace(what, attempt=failed)


def test_a_hang_after_an_error_is_put_down_to_the_error() -> None:
    action = act(hung_after("ValueError: bad batch"))
    assert isinstance(action, Replace)
    assert (action.cause, action.requeue, action.suspects) == (Cause.WORKER_ERROR, True, ())
    assert "rank 3 on n2 failed: ValueError: bad batch" in action.why
    known = tuple(Restarted("worker error", step, action.signature) for step in (10, 20, 30))
    history = dataclasses.replace(past(), restarts=known)
    given_up = act(hung_after("ValueError: bad batch"), history)
    assert isinstance(given_up, Over)
    assert "same error at the same step 4 times" in given_up.why


def test_an_error_that_would_only_come_again_ends_the_job_that_hangs_after_it() -> None:
    action = act(hung_after("torch.OutOfMemoryError: CUDA out of memory."))
    assert isinstance(action, Over)
    assert (action.cause, action.job_id, action.record) == (Cause.GPU_MEMORY, "7", True)
    smaller = act(hung_after("torch.OutOfMemoryError: CUDA out of memory."), policy=SMALLER)
    assert isinstance(smaller, Replace)
    assert smaller.cause is Cause.HANG


def test_what_only_follows_from_a_hang_is_not_its_cause() -> None:
    action = act(hung_after("torch.distributed.DistBackendError: NCCL error"))
    assert isinstance(action, Replace)
    assert (action.cause, action.suspects) == (Cause.HANG, ("n2",))


@pytest.mark.parametrize("state", [S.COMPLETING, S.SUSPENDED, S.STOPPED, S.SIGNALING, S.PENDING])
def test_only_a_running_job_hangs(state: JobState) -> None:
    what = dataclasses.replace(hung(), jobs=(job(state=state, restart=0),))
    assert isinstance(act(what), Wait)


def test_the_hang_of_an_earlier_attempt_is_not_this_ones() -> None:
    what = dataclasses.replace(hung(), jobs=(job(restart=1),))
    assert isinstance(act(what), Wait)


# --- out of GPU memory ------------------------------------------------------------------------

SMALLER = dataclasses.replace(POLICY, on_gpu_memory="smaller_micro_batch", micro_batch=12)


@pytest.mark.parametrize(("now", "expected"), [(None, 6), (6, 3), (3, 1), (1, None)])
def test_a_smaller_micro_batch(
    now: int | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(Cause.GPU_MEMORY, "rank 3 on n2 ran out of GPU memory", "Lower micro_batch")
    monkeypatch.setattr("orchestrator.decide.ended.classify", lambda *_: verdict)
    failed = seen(job(state=S.FAILED), attempt=attempt())
    action = act(failed, past(micro_batch=now), SMALLER)
    if expected is None:
        assert isinstance(action, Over)
        assert "Lower micro_batch" in action.why
    else:
        assert isinstance(action, Restart)
        assert action.micro_batch == expected
    assert isinstance(act(failed), Over)
