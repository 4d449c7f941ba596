"""Preempted runs come back: by the batch shell, by Slurm, by a watcher; once, and only once."""

from __future__ import annotations

import pytest

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

# One more step is done between the notice and the stop; the rest is start-up on a busy machine.
START_S = 90


@pytest.mark.parametrize("user_signal", [True, False])
def test_preempted_twice(cluster: Cluster, user: FsdpqUser, user_signal: bool) -> None:
    cluster.reconfigure(user_signal=user_signal)
    run = user.count("twice", [24, 0.4, 100])
    watcher = user.start("watch", "twice", "--every", "1")
    for number in (1, 2):
        cluster.wait_for(lambda n=number: last_step(run) >= 6 * n, START_S, "it trains")  # type: ignore[misc]
        cluster.submit_prod(nodes=4, seconds=2)
        cluster.wait_for(lambda n=number: attempts(run) > n, START_S, "it is back")  # type: ignore[misc]
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    assert watcher.wait(timeout=20) == 0
    status = user.status("twice")
    assert status["state"] == "finished"
    assert [row["cause"] for row in status["attempts"]] == [
        "notice, saved",
        "notice, saved",
        "finished",
    ]
    assert {row["job_id"] for row in status["attempts"]} == {status["job_id"]}
    assert [row["steps_lost"] for row in status["attempts"]] == [0, 0, 0]
    assert [line["step"] for line in steps(run)] == list(range(1, 25))


def test_back_in_seconds_with_a_watcher_and_in_two_minutes_without(
    cluster: Cluster, user: FsdpqUser
) -> None:
    """With Slurm's default scheduling intervals, which hide a race of StartTime=now."""
    cluster.reconfigure(default_scheduler=True)
    watched = user.count("watched", [400, 0.3, 100])
    alone = user.count("alone", [400, 0.3, 100])
    user.start("watch", "watched", "--every", "1")
    cluster.wait_for(lambda: last_step(watched) > 2 and last_step(alone) > 2, START_S, "both train")
    urgent = cluster.submit_prod(nodes=4, seconds=3)
    cluster.wait_for_state(urgent, "COMPLETED", timeout=60)
    cluster.wait_for(lambda: attempts(watched) == 2, 30, "the watched run starts")
    assert attempts(alone) == 1
    started = user.status("watched")["attempts"][1]["started_at"]
    assert started - user.ended_at(urgent) <= 5
    cluster.wait_for(lambda: attempts(alone) == 2, 180, "the other one starts by itself")
    assert user.status("alone")["attempts"][0]["steps_lost"] == 0


def test_without_grace_the_loss_is_reported_and_at_most_one_interval(
    cluster: Cluster, user: FsdpqUser
) -> None:
    # Even without grace there are KillWait's seconds; a script that looks for notices uses them.
    run = user.count("nograce", [60, 0.4, 4, "--deaf"], partition="nograce")
    user.start("watch", "nograce", "--every", "1")
    cluster.wait_for(lambda: last_step(run) >= 6, START_S, "it trains past a checkpoint")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    first, second = user.status("nograce")["attempts"]
    said = run.events.read_text() + run.output.read_text()
    assert first["cause"] == "preempted", said
    assert (second["first_step"] - 1) % 4 == 0
    assert first["steps_lost"] == first["last_step"] + 1 - second["first_step"]
    # None, if the kill comes right after a checkpoint.
    assert 0 <= first["steps_lost"] <= 4
    again = [line["step"] for line in steps(run) if line["attempt"] == 2]
    assert again == list(range(second["first_step"], 61))


@pytest.mark.parametrize("saves", [True, False])
def test_cancel_mode_comes_back_exactly_once(
    cluster: Cluster, user: FsdpqUser, saves: bool
) -> None:
    """A step of a minute cannot stop within the grace, so that run is killed unsaved."""
    step_s = 0.4 if saves else 60
    run = user.count("cancelmode", [12, step_s, 5], partition="spotcancel")
    for _ in range(2):
        user.start("watch", "cancelmode", "--every", "1")
    trains = (lambda: last_step(run) >= 2) if saves else (lambda: (run.attempt(1).resume).exists())
    cluster.wait_for(trains, START_S, "it trains")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: attempts(run) == 2, START_S, "it is back")
    if saves:
        cluster.wait_for(run.finished.exists, START_S, "it finishes")
    for _ in range(3):
        user.watch_once("cancelmode")
    assert attempts(run) == 2
    assert len(user.live_jobs()) == (0 if saves else 1)
    assert len(user.all_jobs()) == 1


def test_watchers_leave_alone_what_is_being_submitted(cluster: Cluster, user: FsdpqUser) -> None:
    """They see the run directory before the job is there."""
    user.count("long", [1000, 0.3, 1000], nodes=1, gpus_per_node=1)
    for _ in range(3):
        user.start("watch", "--every", "1")
    names = [f"short-{number}" for number in range(6)]
    runs = [user.count(name, [1, 0, 1], nodes=1, gpus_per_node=1) for name in names]
    cluster.wait_for(lambda: all(run.finished.exists() for run in runs), 150, "all finish")
    for run in runs:
        assert attempts(run) == 1
    assert len(user.all_jobs()) == 1 + len(runs)
