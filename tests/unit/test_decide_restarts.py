"""How often and how soon a run is started again, and that two watchers mean the same start."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.decide import SETTLE_S, Observation, Over, Policy, Restart, Wait
from orchestrator.judging.classify import Cause

from .builders import NOW, attempt, job, past, rank_error, seen
from .decisions import S, accounted, act, brief, gone

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


def test_preemptions_between_errors_do_not_refill_the_budget() -> None:
    restarts = ((Cause.WORKER_ERROR, 5), (Cause.PREEMPTED, 5)) * 3
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
