"""Runs that shrink when the queue is starved, and grow back."""

from __future__ import annotations

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

START_S = 90


def test_a_starved_run_shrinks_and_grows_back(cluster: Cluster, user: FsdpqUser) -> None:
    busy = cluster.submit_prod(nodes=3, seconds=600)
    run = user.count("elastic", [60, 0.2, 5], elastic={"min_nodes": 1, "patience_s": 4})
    user.start("watch", "elastic", "--every", "1")
    cluster.wait_for(lambda: last_step(run) >= 3, START_S, "it trains on one node")
    status = user.status("elastic")
    assert len(user.all_jobs()) == 2
    cluster.run(["scancel", str(busy)], user="root")
    user.fsdpq("requeue", "elastic")
    cluster.wait_for(lambda: attempts(run) == 2, START_S, "it is back")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    small, full = user.status("elastic")["attempts"]
    assert status["attempts"][0]["nodes"] == small["nodes"]
    assert "[" not in small["nodes"]
    assert "[" in full["nodes"]
    assert small["steps_lost"] == 0
    assert [line["step"] for line in steps(run)] == list(range(1, 61))
    assert len(user.all_jobs()) == 3
    cluster.wait_for(lambda: not user.live_jobs(), START_S, "no job is left")
