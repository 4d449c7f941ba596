"""One host of three behind a thin cable: the sweep names it, and the next attempt leaves it out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster
from .cluster.config import SYSTEM_PATH
from .user import FsdpqUser, attempts

pytest.importorskip("torch")

# Three ranks that import torch, and a cable that carries 2.5 MB/s, on two cores.
DONE_S = 280
# Hosts that share two cores differ by themselves; the thin cable is forty times slower and more.
CHECK = {"bandwidth_timeout_s": 40, "bandwidth_ratio": 0.2}


@pytest.fixture
def thin(cluster: Cluster) -> Callable[[str], None]:
    """Make a host's cable thin; skips where this machine's kernel cannot."""

    def make(host: str) -> None:
        try:
            cluster.throttle(host, "20mbit")
        except (OSError, subprocess.SubprocessError) as problem:
            if os.environ.get("FSDPQ_REQUIRE_SLURM") and shutil.which("tc", path=SYSTEM_PATH):
                raise
            pytest.skip(f"no tc here that can shape a cable: {problem}")

    return make


def record(run: RunLayout, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.attempt(attempt).bandwidth.read_text())
    return found


@pytest.mark.timeout(600)
def test_the_bench_names_the_slow_host(user: FsdpqUser, thin: Callable[[str], None]) -> None:
    thin("n2")
    job = user.job_file("fast", script=__file__, nodes=3, gpus_per_node=1, preflight=CHECK)
    done = user.fsdpq("diagnose", "--bench", str(job), "--json", timeout=DONE_S)
    said = json.loads(done.stdout)
    assert said["run"] == "fast-bandwidth"
    assert (said["trouble"], said["complete"], said["nodes"]) == (None, True, ["n1", "n2", "n3"])
    assert [slow["node"] for slow in said["finding"]["slow_nodes"]] == ["n2"]
    assert said["finding"]["slow_pairs"] == []
    pairs = {(pair["a"], pair["b"]): pair["bus_gbs"] for pair in said["pairs"]}
    assert set(pairs) == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    assert pairs["n1", "n3"] > 5 * max(pairs["n1", "n2"], pairs["n2", "n3"])
    assert "running" in done.stderr
    assert user.live_jobs() == []
    text = user.fsdpq("status", "fast-bandwidth").stdout
    assert "bandwidth: slow node n2: an all-reduce of" in text


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_a_bench_that_waits_is_cancelled_whatever_ends_fsdpq(user: FsdpqUser, number: int) -> None:
    user.cluster.submit_prod(nodes=4, seconds=1000)
    job = user.job_file("fast", script=__file__, gpus_per_node=1, preflight=CHECK)
    started = user.start("diagnose", "--bench", str(job))
    user.cluster.wait_for(user.live_jobs, 120, "the job waits")
    user.send(started, number)
    user.cluster.wait_for(lambda: user.live_jobs() == [], 60, "no job of alice is left")
    assert (user.runs / "fast-bandwidth" / "cancelled.json").exists()


def test_a_bench_that_runs_is_cancelled_after_kill_9(user: FsdpqUser) -> None:
    job = user.job_file("fast", script=__file__, gpus_per_node=1, preflight=CHECK)
    started = user.start("diagnose", "--bench", str(job))
    run = RunLayout(user.runs / "fast-bandwidth")
    user.cluster.wait_for(lambda: run.attempt(1).start.exists(), 180, "the job runs")
    user.send(started, signal.SIGKILL)
    user.cluster.wait_for(lambda: user.live_jobs() == [], 120, "no job of alice is left")
    assert run.cancelled.exists()


@pytest.mark.timeout(600)
def test_the_slow_host_is_left_out_of_the_next_attempt(
    cluster: Cluster, user: FsdpqUser, thin: Callable[[str], None]
) -> None:
    thin("n2")
    check = {**CHECK, "bandwidth": True}
    run = user.count("left", [8, 0.1, 5], nodes=3, gpus_per_node=1, preflight=check)
    user.start("watch", "left", "--every", "1")
    cluster.wait_for(run.finished.exists, DONE_S, "an attempt without the slow host finishes")
    assert attempts(run) == 2
    ended = json.loads(run.attempt(1).exit.read_text())
    assert (ended["action"], ended["why"]) == ("none", "a node did not pass its check")
    found = json.loads((run.attempt(1).preflight / "node-1.json").read_text())
    [problem] = found["problems"]
    assert (found["node"], problem["check"], problem["kind"]) == ("n2", "bandwidth", "node")
    assert record(run, 1)["nodes"] == ["n1", "n2", "n3"]
    assert record(run, 2)["nodes"] == ["n1", "n3", "n4"]
    status = user.status("left")
    assert [row["cause"] for row in status["attempts"]] == ["node check", "finished"]
    assert [node["node"] for node in status["bad_nodes"]] == ["n2"]
