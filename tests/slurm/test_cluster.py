"""The test cluster itself: what other tests rely on, shown with real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import Cluster

# A step that writes down each signal and does not end of it, until it has seen enough.
LISTEN = """#!/bin/bash
for name in USR2 TERM; do trap "echo $name >> {log}" $name; done
echo started >> {log}
while true; do sleep 0.1; done
"""


def listening_job(cluster: Cluster, *options: str) -> tuple[int, Path]:
    """A running job of one host's size on two hosts, and the file its signals appear in."""
    log = cluster.home() / "signals"
    log.unlink(missing_ok=True)
    step = cluster.home() / "listen.sh"
    step.write_text(LISTEN.format(log=log))
    step.chmod(0o755)
    size = ["--nodes=4", "--exclusive", "--ntasks-per-node=1", "--requeue", "--signal=USR2@5"]
    job = cluster.sbatch([*size, *options], f"srun --nodes=1 --ntasks=1 {step}")
    cluster.wait_for(log.exists, 20, "the step listens")
    return job, log


def test_two_hosts(cluster: Cluster) -> None:
    done = cluster.run(["srun", "--nodes=2", "sh", "-c", "hostname; id -un"])
    assert sorted(done.stdout.split()) == ["alice", "alice", "n1", "n2"]


@pytest.mark.parametrize(("user_signal", "notice"), [(True, "USR2"), (False, "TERM")])
def test_preemption_requeues(cluster: Cluster, user_signal: bool, notice: str) -> None:
    cluster.reconfigure(user_signal=user_signal)
    job, log = listening_job(cluster, "--partition=spot")
    cluster.submit_prod(nodes=2)
    cluster.wait_for(lambda: notice in log.read_text(), 8, f"{notice} arrives early")
    cluster.wait_for_state(job, "PENDING", timeout=30)
    assert cluster.job(job)["Restarts"] == "1"
    assert cluster.job(job)["Reason"] == "BeginTime"
