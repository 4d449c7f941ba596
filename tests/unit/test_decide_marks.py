"""What the marks of a run settle: finished, cancelled, given up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.decide import CANCEL_SETTLE_S, CancelJobs, History, Observation, Over, Wait
from orchestrator.judging.classify import Cause

from .builders import NOW, attempt, job, past, rank_error, seen
from .decisions import GIVEN_UP, REQUEUED, S, accounted, act, brief, gone

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


def test_a_cancelled_run_is_not_over_while_nobody_answers() -> None:
    silent = dataclasses.replace(gone(cancelled_at=NOW - 5), jobs=None)
    assert brief(act(silent)) == ("wait", "unreachable")


def test_a_run_that_was_given_up_stays_given_up() -> None:
    assert act(gone(), past(gave_up=GIVEN_UP)) == GIVEN_UP


def test_a_run_that_was_given_up_and_is_started_by_hand_runs() -> None:
    assert brief(act(seen(job("8")), past(gave_up=GIVEN_UP))) == ("wait", "running")
