"""Look, decide, act, record: with a cluster that is a list of jobs."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decide import Over, Restart, StartNow, Wait, turn
from orchestrator.local.scheduler import LocalScheduler
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.scheduler import JobState
from orchestrator.slurm.client import SlurmScheduler
from orchestrator.watching import watch
from orchestrator.watching.watch import Outcome

from .builders import NOW, make_run, rank_error
from .fake_cluster import Cluster

S = JobState


def once(run: RunLayout) -> Outcome:
    (outcome,) = watch.once([(run, store.load_plan(run))])
    return outcome


def kinds(run: RunLayout) -> list[str]:
    return [event["kind"] for event in store.events(run)][2:]


def another_watcher(run: RunLayout) -> None:
    owner = {"host": "another-host", "pid": 1, "start": "1"}
    past = watch.look([(run, store.load_plan(run))])[0][0].past
    path = run.claims / f"{turn(past)}.0"
    path.write_text(json.dumps(owner))
    os.utime(path, (NOW, NOW))


# --- restarting -------------------------------------------------------------------------------


def test_a_job_that_slurm_still_has_is_requeued(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PREEMPTED)
    outcome = once(run)
    assert outcome.note == "requeued job 7"
    assert cluster.done == [("requeue", "7")]
    assert kinds(run) == ["restart"]
    event = store.events(run)[-1]
    assert (event["cause"], event["how"], event["checkpoint_step"]) == (
        "preempted",
        "requeue",
        None,
    )
    assert isinstance(once(run).action, StartNow)
    assert cluster.done[-1] == ("start now", "7")


def test_a_job_that_only_accounting_has_is_submitted_again(
    cluster: Cluster, run: RunLayout
) -> None:
    cluster.put(state=S.PREEMPTED, in_queue=False)
    assert once(run).note == "submitted job 8"
    assert kinds(run) == ["restart", "submitting", "submitted"]
    assert isinstance(once(run).action, Wait)
    assert cluster.done == [("submit",)]


def test_a_requeue_that_is_refused_becomes_a_submission(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.NODE_FAIL)
    cluster.refuses = {"requeue"}
    assert once(run).note == "submitted job 8"
    assert cluster.done == [("requeue", "7"), ("submit",)]
    assert kinds(run) == ["restart", "refused", "submitting", "submitted"]


def test_a_job_that_ended_well_is_left_alone(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.FAILED)
    run.finished.write_text("{}")
    assert isinstance(once(run).action, Over)
    assert cluster.done == []
    assert kinds(run) == []


def test_a_run_is_given_up_once(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.OUT_OF_MEMORY)
    first, second = once(run), once(run)
    assert kinds(run) == ["gave up"]
    for outcome in (first, second):
        assert isinstance(outcome.action, Over)
        assert outcome.action.state == "failed"
    assert cluster.done == []


def test_the_cancellation_by_scancel_is_written_down(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.CANCELLED, in_queue=False, reason="CANCELLED by 20001")
    assert isinstance(once(run).action, Over)
    mark = store.read_json(run.cancelled)
    assert mark is not None
    assert "by 20001" in mark["by"]
    cluster.found = []  # accounting forgets it too
    action = once(run).action
    assert isinstance(action, Over)
    assert action.state == "cancelled"


# --- exactly once -----------------------------------------------------------------------------


def test_many_watchers_restart_a_run_once(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PREEMPTED, in_queue=False)
    for _ in range(10):
        once(run)
    assert cluster.done == [("submit",)]


def test_what_another_watcher_has_claimed_is_left_to_it(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PREEMPTED)
    another_watcher(run)
    assert once(run).note == "another watcher is at it"
    assert cluster.done == []
    assert kinds(run) == []


@pytest.mark.parametrize("forgotten", [False, True])
def test_one_whose_requeue_is_slow_keeps_the_others_away(
    cluster: Cluster, run: RunLayout, forgotten: bool
) -> None:
    """It has written down that it restarts the run, and waits for the answer of scontrol."""
    cluster.put(state=S.FAILED, restart=1)
    another_watcher(run)
    store.append(run, "restart", cause="worker error", how="requeue", key="7.1.1")
    if forgotten:
        cluster.put(state=S.FAILED, restart=None, in_queue=False)
    assert once(run).note == "another watcher is at it"
    assert cluster.done == []


def test_what_got_no_answer_is_not_submitted(cluster: Cluster, run: RunLayout) -> None:
    """The requeue may have been done; a new job would be the second one."""
    cluster.put(state=S.FAILED)
    cluster.refuses = {"requeue answer"}
    assert "Socket timed out" in once(run).note
    assert cluster.done == [("requeue", "7")]
    cluster.refuses = set()
    assert once(run).note == "requeued job 7"
    assert ("submit",) not in cluster.done


def test_only_restarts_that_came_about_are_counted(cluster: Cluster, run: RunLayout) -> None:
    """Watchers that are killed before their requeue must not use up the run's budget."""
    cluster.put(state=S.FAILED)
    cluster.refuses = {"requeue answer"}
    for _ in range(6):
        assert isinstance(once(run).action, Restart)
    cluster.refuses = set()
    assert once(run).note == "requeued job 7"
    assert len(kinds(run)) == 7


def test_a_claim_is_given_back(cluster: Cluster, run: RunLayout) -> None:
    """A watcher of many runs lives on; what it has done must not bind the user."""
    cluster.put(state=S.OUT_OF_MEMORY)
    once(run)
    owners = [json.loads(path.read_text()) for path in run.claims.iterdir()]
    assert owners == [{"released": True}]


def test_nothing_is_done_if_the_job_came_back_meanwhile(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.NODE_FAIL)
    answers = iter([S.NODE_FAIL, S.PENDING])
    cluster.before_answer = lambda: cluster.put(state=next(answers))
    assert once(run).note == "it has changed since it was looked at"
    assert cluster.done == []
    assert kinds(run) == []


def test_a_watcher_that_got_no_second_answer_tries_again(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PREEMPTED)
    silent = iter([False, True, False, False])
    cluster.before_answer = lambda: setattr(cluster, "silent", next(silent))
    assert once(run).note == "it has changed since it was looked at"
    assert once(run).note == "requeued job 7"


def test_a_watcher_that_is_killed_before_it_acts_is_followed_by_another(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(state=S.PREEMPTED)

    def die(job_id: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "requeue", die)
        with pytest.raises(KeyboardInterrupt):
            once(run)
    assert kinds(run) == ["restart"]
    assert once(run).note == "requeued job 7"


def test_an_unanswered_submission_is_not_repeated_at_once(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.refuses = {"answer"}
    assert "Socket timed out" in once(run).note
    cluster.refuses = set()
    for _ in range(3):
        assert isinstance(once(run).action, Wait)
    assert cluster.done == [("submit",)]
    monkeypatch.setattr(time, "time", lambda: NOW + 1000)
    assert once(run).note == "submitted job 8"


def test_an_unanswered_resubmission_is_not_repeated_at_once(
    cluster: Cluster, run: RunLayout
) -> None:
    cluster.put(state=S.PREEMPTED, in_queue=False)
    cluster.refuses = {"answer"}
    once(run)
    once(run)
    assert cluster.done == [("submit",)]


def test_a_job_that_turns_up_later_is_taken_for_the_submitted_one(
    cluster: Cluster, run: RunLayout
) -> None:
    cluster.refuses = {"answer"}
    once(run)
    cluster.put("8", S.PENDING)
    for _ in range(3):
        assert isinstance(once(run).action, Wait)
    assert [e["job_id"] for e in store.events(run) if e["kind"] == "submitted"] == ["7", "8"]
    assert cluster.done == [("submit",)]


def test_a_job_by_hand_is_adopted_once(cluster: Cluster, run: RunLayout) -> None:
    cluster.put("99", S.PENDING, reason="Priority")
    once(run)
    once(run)
    assert kinds(run) == ["submitted"]
    assert store.events(run)[-1]["how"] == "found in the queue"


def test_a_refused_submission_is_told(cluster: Cluster, run: RunLayout) -> None:
    cluster.refuses = {"submit"}
    assert "Invalid account" in once(run).note
    assert kinds(run) == ["restart", "submitting", "refused"]


def test_submissions_that_are_refused_for_good_end(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.refuses = {"submit"}
    for minute in range(10):
        monkeypatch.setattr(time, "time", lambda: NOW + 3600 * minute)  # noqa: B023
        once(run)
    action = once(run).action
    assert isinstance(action, Over)
    assert action.state == "failed"
    assert len(cluster.done) < 6


# --- the rest ---------------------------------------------------------------------------------


def test_no_answer_changes_nothing(cluster: Cluster, run: RunLayout) -> None:
    cluster.silent = True
    action = once(run).action
    assert isinstance(action, Wait)
    assert action.state == "unreachable"
    assert kinds(run) == []


def test_a_delay_is_taken_back_a_few_times(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    for _ in range(8):
        once(run)
    assert cluster.done == [("start now", "7")] * 5
    assert kinds(run) == ["start now"] * 5


def test_a_start_that_is_refused_is_noted(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    cluster.refuses = {"start now"}
    assert "refused" in once(run).note


def test_a_job_of_a_cancelled_run_is_ended(cluster: Cluster, run: RunLayout) -> None:
    store.mark_cancelled(run, by="alice")
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    once(run)
    assert cluster.done == [("cancel", "7")]
    assert kinds(run) == ["ended jobs"]


def test_looking_does_nothing(cluster: Cluster, run: RunLayout) -> None:
    for state in (S.PREEMPTED, S.FAILED, S.CANCELLED, S.PENDING):
        cluster.put(state=state, reason="BeginTime", restart=1)
        before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
        watch.look([(run, store.load_plan(run))])
        assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before
    assert cluster.done == []


def test_one_pass_over_many_runs_asks_once(cluster: Cluster, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{i}", job_name=f"r{i}") for i in range(50)]
    questions: list[int] = []
    cluster.before_answer = lambda: questions.append(1)
    watch.look([(each, store.load_plan(each)) for each in runs])
    assert len(questions) == 1


def test_each_kind_of_run_has_its_scheduler(tmp_path: Path) -> None:
    plan = store.load_plan(make_run(tmp_path / "a"))
    local = watch.scheduler_of("local", [(RunLayout(tmp_path / "a"), plan)])
    assert local == LocalScheduler({plan.job_name: RunLayout(tmp_path / "a")})
    assert isinstance(watch.scheduler_of("slurm", []), SlurmScheduler)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_settling_waits_until_no_job_has_a_delay(
    cluster: Cluster, run: RunLayout, naps: list[float]
) -> None:
    states: Iterator[dict[str, Any]] = iter(
        [{"state": S.PENDING, "reason": "BeginTime", "restart": 1}] * 3 + [{"state": S.RUNNING}]
    )
    cluster.before_answer = lambda: cluster.put(**next(states))
    (outcome,) = watch.settled([(run, store.load_plan(run))])
    assert isinstance(outcome.action, Wait)
    assert naps == [watch.START_NOW_EVERY_S] * 3


@pytest.mark.parametrize("before", [{"state": S.COMPLETING}, {"state": S.PENDING, "restart": 1}])
def test_settling_waits_for_a_job_that_is_just_being_put_back(
    cluster: Cluster, run: RunLayout, naps: list[float], before: dict[str, Any]
) -> None:
    """Slurm gives a requeued job no reason until its scheduler comes by: seen for up to 2 s."""
    back = {"state": S.PENDING, "reason": "BeginTime", "restart": 1}
    states: Iterator[dict[str, Any]] = iter([before, before, back, {"state": S.RUNNING}])
    cluster.before_answer = lambda: cluster.put(**next(states))
    watch.settled([(run, store.load_plan(run))])
    assert cluster.done == [("start now", "7")]
    assert naps == [watch.START_NOW_EVERY_S] * 3


def test_settling_ends_also_where_nothing_changes(
    cluster: Cluster, run: RunLayout, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(float(second) for second in range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    cluster.put(state=S.COMPLETING)
    watch.settled([(run, store.load_plan(run))])
    assert len(naps) == watch.SETTLED_S


def test_the_loop_hurries_while_a_job_has_a_delay(
    cluster: Cluster, run: RunLayout, naps: list[float]
) -> None:
    states: Iterator[dict[str, Any]] = iter(
        [{"state": S.RUNNING}, {"state": S.PENDING, "reason": "BeginTime"}, {"state": S.RUNNING}]
    )
    cluster.before_answer = lambda: cluster.put(**next(states))
    shown: list[Outcome] = []

    def show(outcomes: list[Outcome]) -> bool:
        shown.extend(outcomes)
        return len(shown) == 3

    watch.loop(lambda: [(run, store.load_plan(run))], every_s=15, show=show)
    assert naps == [15, watch.START_NOW_EVERY_S]


def test_the_budget_counts_over_passes_and_watchers(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same error again and again: restarted three times, later each time, then given up."""
    restarts: list[float] = []
    now = NOW
    for _ in range(2000):
        now += 1
        monkeypatch.setattr(time, "time", lambda: now)  # noqa: B023
        if not cluster.found or not cluster.found[0].state.ended:
            count = cluster.found[0].restart if cluster.found else 0
            cluster.put(state=S.FAILED, end=now, restart=count)
            number = len(list(run.attempts.iterdir())) + 1
            folder = run.attempt(number)
            folder.errors.mkdir(parents=True)
            node = f"n{number}"  # another one each time, so that none is suspected
            start = {"job_id": "7", "restart": count, "nodes": node, "started_at": now}
            folder.start.write_text(json.dumps(start))
            error = dataclasses.asdict(rank_error())
            (folder.errors / "rank-3.json").write_text(json.dumps(error))
        outcome = once(run)
        if outcome.note:
            restarts.append(now)
        if isinstance(outcome.action, Over):
            break
    assert kinds(run) == ["attempt ended", "restart"] * 3 + ["attempt ended", "gave up"]
    waits = [b - a for a, b in pairwise(restarts)]
    assert waits == [pytest.approx(16, rel=0.25), pytest.approx(31, rel=0.25)]
