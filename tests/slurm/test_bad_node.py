"""A node that fails every job in seconds: it is free again at once, and gets the next one."""

from __future__ import annotations

from orchestrator.runstore import store

from .cluster import Cluster
from .user import FsdpqUser, attempts

START_S = 120


def test_the_run_is_on_other_nodes_by_its_third_attempt(cluster: Cluster, user: FsdpqUser) -> None:
    restart = {"delay_s": 1}
    run = user.count("bad", [20, 0.1, 5, "--raise-on", "n1"], restart=restart)
    user.start("watch", "bad", "--every", "1")
    cluster.wait_for(lambda: attempts(run) == 3, START_S, "the third attempt")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    rows = user.status("bad")["attempts"]
    assert [row["nodes"] for row in rows[:2]] == ["n[1-2]"] * 2
    assert "n1" not in rows[2]["nodes"]
    assert [row["cause"] for row in rows[:2]] == ["worker error"] * 2
    why = [event for event in store.events(run) if event["kind"] == "restart"][-1]["why"]
    assert "n1" in why
    assert "2 times" in why
    told = [event for event in store.events(run) if event["kind"] == "submitted"][-1]
    assert told["exclude"] == ["n1"]
