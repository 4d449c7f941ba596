"""Ranks that stand still, and ranks that are slow: found, named, and ended by a watcher."""

from __future__ import annotations

from typing import Any

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

START_S = 90
# The limit of a step, the half minute for stacks, the kill and the requeue.
HANG_S = 180
HANG = {"min_s": 4, "factor": 3, "start_s": 60, "save_s": 60}


def test_a_hung_rank_is_named_and_the_run_goes_on(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.count("hung", [40, 0.2, 5, "--hang-at", 12, 3], hang=HANG)
    cluster.wait_for(lambda: last_step(run) >= 11, START_S, "it trains")
    cluster.wait_for(lambda: user.status("hung")["hang"], HANG_S, "the hang is found")
    told: dict[str, Any] = user.status("hung")
    assert "rank 3 on n2 did not arrive" in told["hang"]
    assert "hang_for_ever" in told["hang"]
    assert attempts(run) == 1  # to look is not to act
    user.start("watch", "hung", "--every", "1")
    cluster.wait_for(lambda: attempts(run) == 2, HANG_S, "it is back")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    status = user.status("hung")
    assert status["attempts"][0]["cause"] == "hang"
    assert status["attempts"][1]["first_step"] == 11
    assert [line["step"] for line in steps(run) if line["attempt"] == 2] == list(range(11, 41))
    assert len(user.all_jobs()) == 1
    assert (run.attempt(1).stacks / "rank-3.txt").read_text().count("hang_for_ever") == 1


def test_a_slow_rank_is_named(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.count("slow", [600, 0.1, 1000, "--slow", 2, 0.2], hang=HANG)
    cluster.wait_for(lambda: user.status("slow")["straggler"], START_S + 60, "it is found")
    assert "rank 2 on n2" in user.status("slow")["straggler"]
    assert not run.stalled.exists()
    user.fsdpq("cancel", "--now", "slow")
