"""Ends that are not preemptions: cancelled, failed, finished in the grace time, time limits."""

from __future__ import annotations

import json

import pytest

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

START_S = 90


@pytest.mark.parametrize("how", ["scancel", "fsdpq cancel", "fsdpq cancel --now"])
def test_cancelled_is_final(cluster: Cluster, user: FsdpqUser, how: str) -> None:
    run = user.count("cancelled", [500, 0.3, 100])
    cluster.wait_for(lambda: last_step(run) >= 3, START_S, "it trains")
    job_id = user.status("cancelled")["job_id"]
    if how == "scancel":
        cluster.run(["scancel", job_id])
    else:
        user.fsdpq(*how.split()[1:], "cancelled")
    cluster.wait_for(lambda: not user.live_jobs(), 40, "the job ends")
    for _ in range(5):
        user.watch_once("cancelled")
    status = user.status("cancelled")
    assert status["state"] == "cancelled"
    assert attempts(run) == 1
    assert not user.live_jobs()
    if how != "fsdpq cancel --now":
        assert status["checkpoint_step"] == status["step"]
    # The script does nothing either, whoever starts it.
    cluster.run(["sbatch", "--wait", str(run.script)], check=False)
    assert attempts(run) == 1


def test_cancelled_while_pending(cluster: Cluster, user: FsdpqUser) -> None:
    cluster.submit_prod(nodes=4, seconds=300)
    user.count("waiting", [5, 0.1, 5])
    assert user.status("waiting")["state"] == "pending"
    user.fsdpq("cancel", "waiting")
    cluster.wait_for(lambda: not user.live_jobs(), 20, "the job is gone")
    user.watch_once("waiting")
    assert user.status("waiting")["state"] == "cancelled"


def test_a_cancelled_run_starts_again_when_its_user_says_so(
    cluster: Cluster, user: FsdpqUser
) -> None:
    run = user.count("again", [30, 0.3, 100])
    cluster.wait_for(lambda: last_step(run) >= 3, START_S, "it trains")
    user.fsdpq("cancel", "again")
    cluster.wait_for(lambda: not user.live_jobs(), 40, "the job ends")
    user.fsdpq("requeue", "again")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    assert [line["step"] for line in steps(run)] == list(range(1, 31))


def test_finished_in_the_grace_time_is_finished(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.count("last", [3, 3, 100])
    cluster.wait_for(lambda: last_step(run) == 2, START_S, "the last step runs")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(run.finished.exists, 60, "the last step is done")
    job_id = user.status("last")["job_id"]
    cluster.wait_for(lambda: cluster.state(job_id) not in ("RUNNING", "COMPLETING"), 60, "it ends")
    for _ in range(3):
        user.watch_once("last")
    assert user.status("last")["state"] == "finished"
    # Slurm 22.05 is done with it; 24.11 and later have put it back. The script ends at once.
    if cluster.state(job_id) == "PENDING":
        cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    else:
        cluster.run(["sbatch", "--wait", str(run.script)])
    cluster.wait_for(lambda: not user.live_jobs(), 60, "no job is left")
    assert attempts(run) == 1


def test_a_worker_that_raises_is_named_and_given_up_after_three_restarts(
    cluster: Cluster, user: FsdpqUser
) -> None:
    run = user.count(
        "raises",
        [20, 0.2, 5, "--raise-at", 8, 3],
        restart={"max_no_progress": 2, "delay_s": 1, "bad_nodes": {"at_most": 0}},
    )
    watcher = user.start("watch", "raises", "--every", "1")
    cluster.wait_for(lambda: watcher.poll() is not None, 150, "the watcher gives up")
    status = user.status("raises")
    assert status["state"] == "failed"
    assert status["error"]["rank"] == 3
    assert status["error"]["node"] == "n2"
    assert status["error"]["exception"] == "ArithmeticError: told to fail at step 8"
    assert "rank 3 on n2" in status["next"]
    assert "fsdpq requeue" in status["next"]
    # The first restart comes after new progress, the budget counts those without.
    assert attempts(run) == 3
    assert not user.live_jobs()


def test_notices_before_the_first_step_do_not_loop_for_ever(
    cluster: Cluster, user: FsdpqUser
) -> None:
    run = user.count("early", [20, 0.2, 5, "--start-s", 3])
    watcher = user.start("watch", "early", "--every", "1")
    for number in (1, 2, 3):
        started = run.attempt(number).logs / "node-1"
        cluster.wait_for(started.exists, START_S, f"attempt {number} starts its workers")
        job_id = json.loads(run.attempt(number).start.read_text())["job_id"]
        cluster.run(["scancel", "--signal=USR2", job_id])
    cluster.wait_for(lambda: watcher.poll() is not None, 60, "the watcher gives up")
    status = user.status("early")
    assert status["state"] == "failed"
    assert "3 times in a row" in status["next"]
    assert attempts(run) == 3


def test_the_time_limit_is_an_end_like_others(cluster: Cluster, user: FsdpqUser) -> None:
    """A minute, less a lead of 10 s, for what takes longer than that."""
    run = user.count("limited", [160, 0.4, 1000], time_limit="00:01:00", notice={"lead_s": 10})
    user.start("watch", "limited", "--every", "1")
    cluster.wait_for(run.finished.exists, 400, "it finishes")
    status = user.status("limited")
    assert len(status["attempts"]) >= 2
    assert {row["steps_lost"] for row in status["attempts"]} == {0}
    assert [line["step"] for line in steps(run)] == list(range(1, 161))
    assert len(user.all_jobs()) == 1


def test_a_lead_beyond_the_time_limit_is_refused(user: FsdpqUser) -> None:
    job = user.job_file("late", script=__file__, time_limit="00:02:00", notice={"lead_s": 120})
    done = user.fsdpq("submit", str(job), check=False)
    assert done.returncode == 1
    assert "notice.lead_s is 120" in done.stderr
    assert not user.runs.exists()
    assert not user.live_jobs()
