"""`fsdpq watch --as-job`: it renews itself, survives its node, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from .cluster import Cluster
from .user import FsdpqUser, attempts

START_S = 90
# SlurmdTimeout is 15 s here; Slurm notices after one to two of them.
LOSS_S = 120


def jobs(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return (state, node) of each live watch job by its id."""
    form = "--format=%A|%T|%N|%j"
    rows = cluster.run(["squeue", "--noheader", "--user=alice", form]).stdout.splitlines()
    cells = [row.split("|") for row in rows]
    return {i: (state, node) for i, state, node, name in cells if name.startswith("fsdpq-watch")}


def running(cluster: Cluster) -> str:
    """Return the id of the watch job that runs; "" if none does."""
    return next((i for i, (state, _) in jobs(cluster).items() if state == "RUNNING"), "")


def settled(cluster: Cluster, *, after: str = "") -> bool:
    """Whether one runs, which is not ``after``, and one waits behind it."""
    found = running(cluster)
    states = sorted(state for state, _ in jobs(cluster).values())
    return found not in ("", after) and states == ["PENDING", "RUNNING"]


def test_a_watch_job_from_beginning_to_end(cluster: Cluster, user: FsdpqUser) -> None:
    one = {"nodes": 1, "gpus_per_node": 1}
    faulty = user.count("faulty", [100, 0.3, 5, "--raise-at", 12, 0], **one)
    long = user.count("long", [100000, 0.5, 20], **one)
    # A minute is the shortest limit that Slurm has.
    said = user.fsdpq("watch", "--as-job", "--every", "1", "--time", "1").stdout
    again = user.fsdpq("watch", "--as-job", "--every", "1", "--time", "1").stdout
    assert "watches already" in again
    cluster.wait_for(lambda: settled(cluster), START_S, "one watches, one waits")
    first = running(cluster)
    assert f"job {first} watches" in said
    cluster.wait_for(lambda: attempts(faulty) >= 2, START_S, "it restarts what failed")

    cluster.wait_for(lambda: settled(cluster, after=first), 150, "it renews itself at its limit")
    second = running(cluster)
    host = jobs(cluster)[second][1]
    cluster.power_off(host)
    cluster.wait_for(lambda: settled(cluster, after=second), LOSS_S + 60, "it survives its node")
    assert len(jobs(cluster)) == 2

    user.fsdpq("cancel", "--now", "long")
    cluster.wait_for(lambda: user.status("faulty")["state"] == "failed", 150, "that one is over")
    cluster.wait_for(lambda: not jobs(cluster), START_S, "no job is left, and no successor")
    assert user.status("long")["state"] == "cancelled"
    assert "all runs are over" in (user.runs / ".watch" / "watch.log").read_text()
    restarts = [e for e in events(faulty.events) if e["kind"] == "restart"]
    assert len(restarts) == 3
    assert long.root.is_dir()


def test_stopped_by_its_user(cluster: Cluster, user: FsdpqUser) -> None:
    user.count("long", [100000, 0.5, 20], nodes=1, gpus_per_node=1)
    user.fsdpq("watch", "long", "--as-job", "--every", "1")
    cluster.wait_for(lambda: settled(cluster), START_S, "one watches, one waits")
    user.fsdpq("watch", "--stop-job")
    cluster.wait_for(lambda: not jobs(cluster), START_S, "both are gone")


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
