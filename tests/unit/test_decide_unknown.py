"""Unknown is not dead: no answer, jobs that are forgotten, submissions without an answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.decide import SUBMIT_SETTLE_S, History, Over, Wait
from orchestrator.judging.classify import Cause

from .builders import NOW, attempt, job, past, rank_error, seen
from .decisions import S, act, brief, gone

# --- no answer --------------------------------------------------------------------------------


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


def test_a_submission_without_an_answer_that_has_shown_up_is_judged_by_what_it_left() -> None:
    """Its user may have cancelled it since."""
    asked = past(submitted=(), asked_at=NOW - 9000)
    began = attempt(started_at=NOW - 8000.0)
    action = act(seen(job(state=S.CANCELLED, in_queue=False), attempt=began), asked)
    assert brief(action) == ("over", "cancelled")
    assert brief(act(gone(attempt=None), asked))[0] == "restart"
