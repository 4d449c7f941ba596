"""A cloud takes a node back, and Slurm knows nothing of it."""

from __future__ import annotations

import sys

import yaml

from orchestrator.runstore import store

from .cluster import Cluster
from .user import HERE, SITE, FsdpqUser, attempts, last_step, steps

START_S = 120


def test_the_node_is_left_out_of_the_next_attempt(cluster: Cluster, user: FsdpqUser) -> None:
    flag, python, site = (user.home / name for name in ("flag", "python", "cloud.yaml"))
    doomed = f'exec {sys.executable} {HERE / "programs" / "doomed.py"} {flag} n2 "$@"'
    user.write(python, f"#!/bin/bash\n{doomed}\n", mode=0o755)
    user.write(site, yaml.safe_dump({"extends": str(SITE), "name": "spot", "cloud": "aws"}))
    run = user.count("spot", [200, 0.1, 1000], site=str(site), python=str(python))
    cluster.wait_for(lambda: last_step(run) >= 5, START_S, "it trains")
    user.start("watch", "spot", "--every", "1")
    user.write(flag, "")
    cluster.wait_for(lambda: attempts(run) == 2, START_S, "the second attempt")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    first, second = user.status("spot")["attempts"]
    assert (first["nodes"], first["cause"]) == ("n[1-2]", "notice, saved")
    assert "n2" not in second["nodes"]
    assert first["last_step"] + 1 == second["first_step"]
    assert [line["step"] for line in steps(run)] == list(range(1, 201))
    told = [event for event in store.events(run) if event["kind"] == "excluded"]
    assert [event["nodes"] for event in told] == [["n2"]]
