"""Jobs that the controller has forgotten: accounting decides, with a record for each start."""

from __future__ import annotations

import dataclasses

import pytest

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step

START_S = 90


def known(cluster: Cluster) -> bool:
    """Whether the controller still knows a job of alice's."""
    query = ["squeue", "--noheader", "--states=all", "--user=alice", "--format=%A"]
    return bool(cluster.run(query).stdout.split())


@pytest.mark.parametrize("end", ["fails", "scancel"])
def test_a_requeued_job_that_ended_and_was_forgotten(
    cluster: Cluster, user: FsdpqUser, end: str
) -> None:
    cluster.apply(dataclasses.replace(cluster.config, min_job_age_s=2))
    fault = ["--raise-at", 30, 1] if end == "fails" else []
    run = user.count("forgotten", [500, 0.3, 5, *fault])
    cluster.wait_for(lambda: last_step(run) >= 6, START_S, "it trains")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: user.status("forgotten")["state"] == "requeued", START_S, "it waits")
    user.watch_once("forgotten")
    cluster.wait_for(lambda: attempts(run) == 2 and last_step(run) >= 12, START_S, "it is back")
    if end == "scancel":
        cluster.run(["scancel", user.status("forgotten")["job_id"]])
    cluster.wait_for(lambda: not known(cluster), 150, "the controller forgets the job")
    for _ in range(3):
        user.watch_once("forgotten")
    if end == "scancel":
        assert user.status("forgotten")["state"] == "cancelled"
        assert attempts(run) == 2
    else:
        cluster.wait_for(lambda: attempts(run) == 3, START_S, "it starts again")
        assert len(user.live_jobs()) == 1
