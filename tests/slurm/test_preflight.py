"""One bad node of two: named within seconds, and no worker started anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster
from .cluster.config import SYSTEM_PATH
from .user import FsdpqUser, attempts

START_S = 90
LOST = "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"


def install(cluster: Cluster, host: str, script: str) -> None:
    """Put an nvidia-smi where only this host has it: /tmp is each host's own."""
    place = "mkdir -p /tmp/bin && cat > /tmp/bin/nvidia-smi && chmod 755 /tmp/bin/nvidia-smi"
    cluster.run(["sh", "-c", place], host=host, input=f"#!/bin/bash\n{script}\n")


@pytest.fixture
def path(cluster: Cluster) -> str:
    """PATH of a job, with what `install` puts on a host first."""
    return f"/tmp/bin:{Path(cluster.python).parent}:{SYSTEM_PATH}"


def found(run: RunLayout, node: int, attempt: int = 1) -> dict[str, Any]:
    path = run.attempt(attempt).preflight / f"node-{node}.json"
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def test_a_bad_node_is_named_before_any_worker_starts(
    cluster: Cluster, user: FsdpqUser, path: str
) -> None:
    install(cluster, "n2", f"echo '{LOST}'; exit 255")
    run = user.count("bad", [20, 0.1, 5], env={"PATH": path})
    end = run.attempt(1).exit
    cluster.wait_for(end.exists, START_S, "the attempt ends")
    cluster.run(["rm", "-r", "/tmp/bin"], host="n2")
    ended = json.loads(end.read_text())
    started = json.loads(run.attempt(1).start.read_text())
    assert (ended["action"], ended["why"]) == ("none", "a node did not pass its check")
    assert ended["ended_at"] - started["started_at"] < 60
    bad = found(run, 1)
    assert (bad["node"], bad["ok"]) == ("n2", False)
    assert bad["problems"] == [
        {
            "check": "gpus",
            "kind": "node",
            "what": f"nvidia-smi shows no GPU; it says: {LOST}",
        }
    ]
    assert f"node 1 (n2) is unfit: gpus: nvidia-smi shows no GPU; it says: {LOST}" in (
        run.output.read_text()
    )
    assert not run.metrics.exists()
    assert attempts(run) == 1


def test_a_notice_during_the_check_puts_the_job_back(
    cluster: Cluster, user: FsdpqUser, path: str
) -> None:
    for host in ("n1", "n2"):
        install(cluster, host, f'touch "{user.home}/asked-$SLURM_NODEID"; exec sleep 600')
    run = user.count("noticed", [8, 0.1, 5], env={"PATH": path})
    asked = [user.home / f"asked-{node}" for node in (0, 1)]
    cluster.wait_for(lambda: all(mark.exists() for mark in asked), START_S, "both nodes check")
    job_id = json.loads(run.attempt(1).start.read_text())["job_id"]
    cluster.run(["scancel", "--signal=USR2", job_id])
    cluster.wait_for(run.attempt(1).exit.exists, 30, "the attempt ends")
    for host in ("n1", "n2"):
        cluster.run(["rm", "-r", "/tmp/bin"], host=host)
    assert json.loads(run.attempt(1).exit.read_text())["action"] == "requeue"
    assert not list(run.attempt(1).root.glob("preflight/*"))
    user.start("watch", "noticed", "--every", "1")
    cluster.wait_for(run.finished.exists, START_S, "the next attempt finishes")
    assert [found(run, node, attempt=2)["ok"] for node in (0, 1)] == [True, True]
