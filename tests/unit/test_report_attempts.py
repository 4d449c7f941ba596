"""The attempts of a run in its status: how each ended, what it lost, how long it was queued."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import report
from orchestrator.decide import Over, Restart
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.report import Told
from orchestrator.rundir.attempt import Attempt, Weight
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, finding, job, rank_error, seen
from .statuses import RUNNING, ran, rows, status

# --- how each attempt ended -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "state", "cause"),
    [
        ({"outcome": "finished"}, "finished", "finished"),
        ({"action": "finished"}, "finished", "finished"),
        ({"outcome": "stopped", "noticed": True, "action": "requeue"}, "stopped", "notice, saved"),
        ({"error": rank_error()}, "failed", "worker error"),
        ({"outcome": "no_checkpoint"}, "failed", "no usable checkpoint"),
        ({"noticed": True}, "ended", "notice, not saved"),
        ({}, "ended", "ended without notice"),
    ],
)
def test_how_an_earlier_attempt_ended(changes: dict[str, Any], state: str, cause: str) -> None:
    found = status(seen(job("8")), RUNNING, attempt(1, **changes), attempt(2, job_id="8"))
    assert rows(found, "state") == [state, "running"]
    assert rows(found, "cause") == [cause, None]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "put back by Slurm"),
        ({"noticed": True}, "put back by Slurm"),
        ({"noticed": True, "action": "none"}, "notice, not saved"),
        ({"findings": (finding("preempted", Cause.PREEMPTED, Weight.SLURM),)}, "preempted"),
        (
            {"findings": (finding("node-failure", Cause.NODE_FAILURE, Weight.SLURM),)},
            "node failure",
        ),
        ({"findings": (finding("requeued", Cause.NOTICE, Weight.ECHO),)}, "put back by Slurm"),
    ],
)
def test_how_an_attempt_ended_that_slurm_started_again(changes: dict[str, Any], cause: str) -> None:
    found = status(seen(job(restart=1)), RUNNING, attempt(1, **changes), attempt(2, restart=1))
    assert rows(found, "cause") == [cause, None]


def test_slurms_word_beats_the_errors_of_those_that_lived_on() -> None:
    lost = finding("node-failure", Cause.NODE_FAILURE, Weight.SLURM)
    first = attempt(1, error=rank_error("VoteError: one is gone"), findings=(lost,))
    found = status(seen(job(restart=1)), RUNNING, first, attempt(2, restart=1))
    assert rows(found, "cause") == ["node failure", None]


def test_the_last_attempt_ended_for_the_cause_that_was_decided() -> None:
    action = Restart("key", None, Verdict(Cause.PREEMPTED, "preempted"), "preempted")
    earlier = attempt(1, job_id="6")
    found = status(seen(job(state=JobState.PREEMPTED)), action, earlier, attempt(2))
    assert rows(found, "cause") == ["ended without notice", "preempted"]
    assert found.cause == "preempted"


def test_why_an_attempt_ended_stays_what_was_found_then() -> None:
    found = status(seen(job()), RUNNING, attempt(1), attempt(2), told={1: Told("preempted")})
    assert rows(found, "cause")[0] == "preempted"


def test_the_cause_of_a_running_run_is_that_of_the_attempt_before() -> None:
    stopped = attempt(1, outcome="stopped", action="requeue")
    found = status(seen(job(restart=1)), RUNNING, stopped, attempt(2, restart=1))
    assert found.cause == "notice, saved"


@pytest.mark.parametrize(
    ("what", "said", "alive"),
    [
        (job(), attempt(), True),
        (job(state=JobState.COMPLETING), attempt(), True),
        (job(restart=None), attempt(restart=4), True),
        (job(restart=1), attempt(restart=0), False),  # it was requeued since
        (job("8"), attempt(job_id="7"), False),
        (job(state=JobState.FAILED), attempt(), False),
        (job(in_queue=False), attempt(), False),
        (job(), attempt(action="requeue"), False),
    ],
)
def test_which_attempt_is_alive(what: Any, said: Attempt, alive: bool) -> None:
    (row,) = status(seen(what), RUNNING, said).attempts
    assert (row["state"] == "running") is alive


def test_nothing_is_alive_in_a_finished_run() -> None:
    over = Over("finished", "done", Cause.FINISHED)
    found = status(seen(job(), finished=True), over, attempt(outcome="finished", last_step=100))
    assert rows(found, "state") == ["finished"]
    assert rows(found, "cause") == ["finished"]


# --- steps lost -------------------------------------------------------------------------------


def lost(attempts: list[Attempt], checkpoint: int | None = None, *jobs: Any) -> list[int | None]:
    return rows(status(seen(*jobs, checkpoint_step=checkpoint), RUNNING, *attempts), "steps_lost")


def test_a_saved_stop_loses_nothing() -> None:
    assert lost([ran(1, 0, 42), ran(2, 42, 50)], 50) == [0, 0]


def test_a_kill_loses_what_came_after_the_checkpoint() -> None:
    assert lost([ran(1, 0, 47), ran(2, 40, 44), ran(3, 40, 60)], 60) == [7, 4, 0]


def test_falling_back_to_an_older_checkpoint_counts_for_the_last_attempt_only() -> None:
    assert lost([ran(1, 0, 40), ran(2, 40, 55), ran(3, 20, 30)], 30) == [0, 35, 0]


def test_an_attempt_that_never_said_where_it_started_is_looked_through() -> None:
    assert lost([ran(1, 0, 47), ran(2, None, None), ran(3, 40, 41)], 40) == [7, 0, 1]


def test_the_last_one_counts_against_the_newest_checkpoint() -> None:
    assert lost([ran(1, 0, 47)], 40) == [7]
    assert lost([ran(1, 0, 47)], None) == [47]
    assert lost([ran(1, 0, 47)], 47) == [0]
    # A checkpoint that is newer than what the attempt had time to tell.
    assert lost([ran(1, 0, 47)], 50) == [0]


def test_nothing_of_a_finished_attempt_is_lost() -> None:
    done = attempt(outcome="finished", action="finished", last_step=30)
    over = Over("finished", "done", Cause.FINISHED)
    assert status(seen(checkpoint_step=None), over, done).attempts[0]["steps_lost"] == 0


def test_an_attempt_without_a_step_lost_none_and_a_running_one_cannot_be_told() -> None:
    assert lost([ran(1, 0, None)], 40) == [0]
    assert lost([ran(1, 0, 47), ran(2, 40, 60)], 40, job(restart=1)) == [7, None]


# --- time in the queue ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "queued_s"),
    [
        ({"ended_at": NOW - 100}, 60.0),
        ({"ended_at": None, "heard_at": NOW - 90}, 50.0),
        ({"ended_at": None, "heard_at": None}, None),
        ({"ended_at": NOW}, 0.0),  # clocks of two hosts
    ],
)
def test_time_from_the_end_before_to_the_start(
    before: dict[str, Any], queued_s: float | None
) -> None:
    first, second = ran(1, 0, 9, **before), ran(2, 0, 9, started_at=NOW - 40)
    assert rows(status(seen(), RUNNING, first, second), "queued_s")[1] == queued_s


def test_time_from_the_submission_to_the_first_start() -> None:
    first = ran(1, 0, 9, started_at=NOW - 100)
    assert rows(status(seen(), RUNNING, first, submitted_at=NOW - 112.34), "queued_s") == [12.3]
    assert rows(status(seen(), RUNNING, first), "queued_s") == [None]
    unstarted = ran(1, 0, 9, started_at=None)
    assert rows(status(seen(), RUNNING, unstarted, submitted_at=NOW), "queued_s") == [None]


def test_a_killed_attempt_ends_when_a_watcher_says_so_or_the_next_begins() -> None:
    """Its own shell could not write it down, and the time until then is no queue."""
    first = attempt(1, started_at=NOW - 300, heard_at=NOW - 280, last_step=25)
    second = attempt(2, restart=1, started_at=NOW - 100)
    told = {1: Told("hang", "rank 1 on n2 did not arrive", NOW - 150)}
    found = status(seen(job(restart=1)), RUNNING, first, second, told=told)
    assert rows(found, "ended_at") == [NOW - 150, None]
    assert rows(found, "queued_s")[1] == 50.0
    assert rows(found, "why") == ["rank 1 on n2 did not arrive", None]
    assert "attempt 1: rank 1 on n2 did not arrive" in report.details(found)
    late = {1: Told("hang", "", NOW - 10)}
    found = status(seen(job(restart=1)), RUNNING, first, second, told=late)
    assert rows(found, "ended_at") == [NOW - 100, None]
