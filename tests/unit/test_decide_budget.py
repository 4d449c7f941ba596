"""How often and how soon: every cause x checkpoint progress x budget."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.decide import BY_HAND, Restarted, budget
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.launchplan.policy import Policy

from .builders import POLICY, past

ALL = [cause for cause in Cause if cause not in (Cause.FINISHED, Cause.CANCELLED)]
# What the program itself does shares `max_no_progress`, 3 by default, besides its own budget.
BUDGET = {
    Cause.WORKER_ERROR: 3,
    Cause.HANG: 3,
    Cause.TIME_LIMIT: 3,
    Cause.GONE: 3,
    Cause.FABRIC: 5,
    Cause.GPU_FAILURE: 5,
    Cause.LAUNCH: 5,
    Cause.DISK_FULL: 3,
    Cause.NODE_CHECK: 10,
}


def spent(cause: Cause, restarts: list[tuple[str, int | None]], step: int | None) -> bool:
    return bool(budget.spent(Verdict(cause, "it failed"), past(restarts=restarts), step, POLICY))


@pytest.mark.parametrize("cause", ALL)
@pytest.mark.parametrize("done", range(12))
def test_each_cause_has_its_budget(cause: Cause, done: int) -> None:
    assert spent(cause, [(cause, 5)] * done, 5) == (done >= BUDGET.get(cause, 1000))


@pytest.mark.parametrize("cause", ALL)
@pytest.mark.parametrize("before", [None, 4])
def test_a_newer_checkpoint_gives_it_back(cause: Cause, before: int | None) -> None:
    assert not spent(cause, [(cause, before)] * 50, 5)


@pytest.mark.parametrize("cause", ALL)
def test_a_restart_by_hand_gives_it_back(cause: Cause) -> None:
    assert not spent(cause, [(cause, 5)] * 50 + [(BY_HAND, 5)], 5)


@pytest.mark.parametrize("other", [Cause.FABRIC, Cause.GPU_FAILURE, Cause.NODE_CHECK])
def test_what_machines_do_does_not_use_up_what_the_program_may(other: Cause) -> None:
    assert not spent(Cause.WORKER_ERROR, [(other, 5)] * 4, 5)


@pytest.mark.parametrize("first", sorted(budget.PROGRAM))
@pytest.mark.parametrize("second", sorted(budget.PROGRAM))
def test_different_faults_of_the_program_share_one_budget(first: Cause, second: Cause) -> None:
    assert spent(second, [(first, 5)] * 3, 5)


def test_null_is_as_many_as_it_takes_but_for_faults_of_the_program() -> None:
    free = Policy(max_no_progress=3, budgets={})
    machine, program = Verdict(Cause.FABRIC, "x"), Verdict(Cause.HANG, "x")
    assert not budget.spent(machine, past(restarts=[(Cause.FABRIC, 5)] * 50), 5, free)
    assert budget.spent(program, past(restarts=[(Cause.HANG, 5)] * 3), 5, free)


def test_a_budget_of_none_at_all() -> None:
    never = Policy(budgets={Cause.FABRIC: 0})
    assert budget.spent(Verdict(Cause.FABRIC, "x"), past(), 5, never)


# --- the same error at the same step ----------------------------------------------------------

ERROR = Verdict(Cause.WORKER_ERROR, "rank 3 failed", signature="ValueError: bad batch @41")


def test_the_same_error_at_the_same_step_ends_although_checkpoints_move() -> None:
    """Notices between save newer steps, and the batch at step 41 stays bad."""
    history = past(restarts=[(Cause.WORKER_ERROR, step, ERROR.signature) for step in (37, 38, 40)])
    assert "the same error at the same step 4 times" in budget.spent(ERROR, history, 40, POLICY)


@pytest.mark.parametrize("between", [Cause.PREEMPTED, Cause.NOTICE, Cause.NODE_FAILURE])
def test_preemptions_between_do_not_hide_it(between: Cause) -> None:
    restarts = [(Cause.WORKER_ERROR, 30 + n, ERROR.signature) for n in range(3)]
    mixed = [item for restart in restarts for item in (restart, (between, 33, ""))]
    assert budget.spent(ERROR, past(restarts=mixed), 40, POLICY)


@pytest.mark.parametrize("last", ["", "ValueError: bad batch @42", "KeyError: 3 @41"])
def test_another_error_or_another_step_starts_anew(last: str) -> None:
    restarts = [(Cause.WORKER_ERROR, 30, ERROR.signature)] * 2 + [(Cause.WORKER_ERROR, 35, last)]
    assert not budget.spent(ERROR, past(restarts=restarts), 40, POLICY)


# --- delays -----------------------------------------------------------------------------------


def delay(cause: Cause, times: int, policy: Policy = POLICY) -> float:
    return budget.delay(Verdict(cause, "x"), past(restarts=[(cause, 5)] * times), 5, policy)


@pytest.mark.parametrize("cause", BUDGET)
@pytest.mark.parametrize(("times", "expected"), [(0, 0), (1, 15), (2, 30), (3, 60), (20, 900)])
def test_the_delay_doubles_up_to_a_limit(cause: Cause, times: int, expected: float) -> None:
    assert delay(cause, times) == expected


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.NOTICE, Cause.NODE_FAILURE])
def test_what_the_cluster_does_is_answered_at_once(cause: Cause) -> None:
    assert delay(cause, 10) == 0


def test_jitter_differs_between_runs_and_not_between_watchers() -> None:
    policies = [dataclasses.replace(POLICY, seed=f"run-{n}") for n in range(50)]
    found = {delay(Cause.FABRIC, 1, policy) for policy in policies}
    assert len(found) > 20
    assert all(15 * 0.8 <= value <= 15 * 1.2 for value in found)
    assert delay(Cause.FABRIC, 1, policies[0]) == delay(Cause.FABRIC, 1, policies[0])


def test_restarted_says_what_it_answered() -> None:
    assert past(restarts=[("hang", 5)]).restarts == (Restarted("hang", 5, ""),)
