"""What a user asks of a run, with a cluster that is a list of jobs."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Callable

import pytest

from orchestrator.decide import Over, turn
from orchestrator.errors import QueryError, RunError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import claims, store
from orchestrator.scheduler import JobState
from orchestrator.watching import act, control, observe, watch

from .fake_cluster import Cluster

S = JobState


def cancel(layout: RunLayout, *, now: bool = False) -> str:
    return control.cancel(layout, store.load_plan(layout), now=now)


def requeue(layout: RunLayout) -> str:
    return control.requeue(layout, store.load_plan(layout)).text


@pytest.mark.parametrize(
    ("state", "now", "done"),
    [
        (S.RUNNING, False, ("notify", "7", "USR2")),
        (S.RUNNING, True, ("cancel", "7")),
        (S.PENDING, False, ("cancel", "7")),
    ],
)
def test_cancelling_saves_first_what_runs(
    cluster: Cluster, run: RunLayout, state: JobState, now: bool, done: tuple[str, ...]
) -> None:
    cluster.put(state=state)
    assert "cancelled" in cancel(run, now=now)
    assert cluster.done == [done]
    assert run.cancelled.exists()


def test_the_mark_comes_before_the_signal(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.RUNNING)
    marked: list[bool] = []
    cluster.before_answer = lambda: marked.append(run.cancelled.exists())
    cancel(run)
    assert marked == [True]


def test_the_mark_stands_although_nobody_answers(cluster: Cluster, run: RunLayout) -> None:
    cluster.silent = True
    with pytest.raises(QueryError):
        cancel(run)
    assert run.cancelled.exists()


def test_cancelling_twice_keeps_the_first_mark(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.RUNNING)
    cancel(run)
    mark = run.cancelled.read_bytes()
    cancel(run, now=True)
    assert run.cancelled.read_bytes() == mark
    assert cluster.done[-1] == ("cancel", "7")


def test_a_job_that_has_ended_is_not_told_anything(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.FAILED)
    cancel(run)
    assert cluster.done == []


@pytest.mark.parametrize("command", [cancel, requeue])
def test_a_finished_run_is_left_alone(
    cluster: Cluster, run: RunLayout, command: Callable[[RunLayout], str]
) -> None:
    run.finished.write_text("{}")
    cluster.put(state=S.RUNNING)
    with pytest.raises(RunError, match="is finished"):
        command(run)
    assert cluster.done == []


def test_requeueing_what_trains_sends_the_notice(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.RUNNING)
    assert "was told to save and start again" in requeue(run)
    assert cluster.done == [("notify", "7", "USR2")]


def test_requeueing_what_waits_takes_back_its_delay(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    requeue(run)
    assert cluster.done == [("start now", "7")]


@pytest.mark.parametrize("state", [S.FAILED, S.CANCELLED, S.TIMEOUT, None])
def test_requeueing_what_is_over_submits_it_anew(
    cluster: Cluster, run: RunLayout, state: JobState | None
) -> None:
    if state is not None:
        cluster.put(state=state)
    store.mark_cancelled(run, by="alice")
    run.no_progress.write_text("3\n")
    store.append(run, "gave up", cause="worker error", why="three times")
    assert "submitted job 8" in requeue(run)
    assert not run.cancelled.exists()
    assert not run.no_progress.exists()
    kinds = [event["kind"] for event in store.events(run)]
    assert kinds[-3:] == ["restart", "submitting", "submitted"]


def test_requeueing_while_nobody_answers_submits_nothing(cluster: Cluster, run: RunLayout) -> None:
    cluster.silent = True
    store.mark_cancelled(run, by="alice")
    with pytest.raises(QueryError):
        requeue(run)
    assert run.cancelled.exists()
    assert cluster.done == []


def test_what_is_still_being_cancelled_cannot_be_started(cluster: Cluster, run: RunLayout) -> None:
    cluster.put(state=S.RUNNING)
    store.mark_cancelled(run, by="alice")
    with pytest.raises(RunError, match="still being cancelled"):
        requeue(run)
    assert cluster.done == []
    assert run.cancelled.exists()


def test_a_watcher_and_a_user_never_answer_the_same_end(cluster: Cluster, run: RunLayout) -> None:
    """One claim for an end, whoever restarts: here a watcher with a slow `scontrol requeue`."""
    cluster.put(state=S.FAILED)
    sight = observe.look([(run, store.load_plan(run))], cluster)[0]
    path = run.claims / f"{turn(sight.past)}.0"
    path.write_text(json.dumps({"host": "another-node", "pid": 1, "at": 0}))
    os.utime(path, (time.time(), time.time()))
    with pytest.raises(RunError, match="a watcher is starting it again"):
        requeue(run)
    assert cluster.done == []


def test_a_job_that_may_still_turn_up_is_waited_for(cluster: Cluster, run: RunLayout) -> None:
    """A submission without an answer, less than four minutes ago."""
    cluster.put(state=S.FAILED)
    store.append(run, "submitting")
    with pytest.raises(RunError, match="try again in 240 s"):
        requeue(run)
    assert cluster.done == []


def test_a_user_may_restart_what_a_living_watcher_gave_up(cluster: Cluster, run: RunLayout) -> None:
    """The watcher is this process here, and asks from another one there."""
    cluster.put(state=S.OUT_OF_MEMORY)
    watch.once([(run, store.load_plan(run))])
    for path in run.claims.iterdir():  # as seen by a process that is not the watcher
        assert claims._is_gone(json.loads(path.read_text()))
    assert "submitted job 8" in requeue(run)


def test_what_a_user_restarts_no_watcher_cancels(cluster: Cluster, run: RunLayout) -> None:
    """A watcher that has seen the job cancelled must not write that down after the restart."""
    cluster.put(state=S.CANCELLED)
    plan = store.load_plan(run)
    sight, action = watch.look([(run, plan)])[0]
    assert isinstance(action, Over)
    requeue(run)
    act.act(sight, action, cluster)
    assert not run.cancelled.exists()


def test_a_user_without_a_name(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert "cancelled" in cancel(run)
    assert (store.read_json(run.cancelled) or {})["by"] == str(os.getuid())


def test_a_job_that_came_back_while_its_user_asked_for_it_is_left_alone(
    cluster: Cluster, run: RunLayout
) -> None:
    """Seen in a round: the watcher that put it back was killed, and its claim with it."""
    states = iter([S.PREEMPTED, S.PENDING, S.PENDING, S.PENDING])
    cluster.before_answer = lambda: cluster.put(state=next(states), restart=1)
    with pytest.raises(RunError, match="starting it again"):
        requeue(run)
    assert cluster.done == []


def test_a_controller_that_falls_silent_meanwhile_is_not_an_end(
    cluster: Cluster, run: RunLayout
) -> None:
    cluster.put(state=S.FAILED)
    answers = iter([False, True, True])

    def answer() -> None:
        cluster.silent = next(answers)

    cluster.before_answer = answer
    with pytest.raises(RunError, match="does not answer"):
        requeue(run)
    assert cluster.done == []
