"""A network that is less than the site promises: shown, or no reason to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.nodelist import expand
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

from .cluster import Cluster
from .user import HERE, FsdpqUser, attempts, last_step, steps

SITE = HERE / "site-ib.yaml"
PLAIN = HERE / "programs" / "plain.py"
START_S = 120
# The monitor looks every five seconds; the ranks vote, save and end.
STOP_S = 120
# Without steps it looks after a minute; twenty seconds for a script to listen, then half a minute
# that torchrun gives its workers.
DEAF_S = 240


def count(user: FsdpqUser, name: str, *words: object, **keys: Any) -> RunLayout:
    program = [400, 0.2, 1000, "--nccl", *words]
    return user.count(name, program, site=str(SITE), **keys)


def over(user: FsdpqUser, run: RunLayout) -> bool:
    return run.attempt(1).exit.exists() and not user.live_jobs()


def test_sockets_on_an_infiniband_site_are_shown(cluster: Cluster, user: FsdpqUser) -> None:
    run = count(user, "flagged", "Socket")
    cluster.wait_for(run.attempt(1).fabric.exists, START_S, "the monitor looks")
    status = user.status("flagged")
    assert status["network"]["verdict"] == "socket_fallback"
    assert status["attempts"][0]["network"] == "socket_fallback"
    text = user.fsdpq("status").stdout
    assert "over sockets (TCP), and test-cluster-ib has infiniband" in text
    assert "ibv_devinfo" in text
    told = user.fsdpq("diagnose", "flagged").stdout
    assert told.startswith("socket_fallback: traffic of n1, n2 goes over sockets")
    seen = last_step(run)
    cluster.wait_for(lambda: last_step(run) > seen + 5, START_S, "it goes on")
    user.fsdpq("cancel", "--now", "flagged")


def test_what_requires_rdma_saves_and_gives_up(cluster: Cluster, user: FsdpqUser) -> None:
    run = count(user, "required", "Socket", require_rdma=True)
    cluster.wait_for(lambda: over(user, run), START_S + STOP_S, "it stops by itself")
    ended = store.read_json(run.attempt(1).exit) or {}
    assert (ended["action"], ended["code"]) == ("none", 0)
    assert (store.read_json(run.attempt(1).status) or {})["reason"] == "NO-RDMA"
    done = last_step(run)
    assert (run.checkpoints / f"step-{done}").is_dir()
    for _ in range(2):  # the first pass may find the job ending
        user.watch_once("required")
    status = user.status("required")
    assert (status["state"], status["cause"]) == ("failed", "no RDMA")
    assert "over sockets" in status["next"]
    assert len(user.all_jobs()) == 1
    assert attempts(run) == 1


def test_one_node_without_rdma_is_left_out(cluster: Cluster, user: FsdpqUser) -> None:
    words = ("IB", "--nccl-on", "n2", "Socket")
    run = count(user, "one", *words, require_rdma=True, restart={"delay_s": 1})
    user.start("watch", "one", "--every", "1")
    cluster.wait_for(lambda: attempts(run) == 2, START_S + STOP_S, "the second attempt")
    cluster.wait_for(lambda: run.attempt(2).fabric.exists(), START_S, "its network is proven")
    status = user.status("one")
    assert status["attempts"][0]["cause"] == "node check"
    assert "traffic of n2 goes over sockets" in status["attempts"][0]["why"]
    assert "n2" not in expand(status["attempts"][1]["nodes"])
    assert status["network"]["verdict"] == "ok"
    first = {line["attempt"]: line["step"] for line in reversed(steps(run))}
    last = {line["attempt"]: line["step"] for line in steps(run)}
    cluster.wait_for(lambda: last_step(run) > last[1], START_S, "it goes on where it stopped")
    assert 2 not in first or first[2] == last[1] + 1
    user.fsdpq("cancel", "--now", "one")


def test_a_script_that_does_not_listen_is_ended(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.submit(
        "deaf", script=str(PLAIN), site=str(SITE), require_rdma=True, code={"live": True}
    )
    cluster.wait_for(lambda: over(user, run), START_S + DEAF_S, "it is ended")
    assert (store.read_json(run.attempt(1).exit) or {})["action"] == "none"
    for _ in range(2):
        user.watch_once("deaf")
    status = user.status("deaf")
    assert (status["state"], status["cause"]) == ("failed", "no RDMA")
    assert len(user.all_jobs()) == 1


def test_a_site_without_rdma_refuses_it(cluster: Cluster, user: FsdpqUser) -> None:
    job: Path = user.job_file("refused", script=str(PLAIN), require_rdma=True)
    done = user.fsdpq("submit", str(job), check=False)
    assert done.returncode == 1
    assert "require_rdma: the fabric of the site test-cluster is ethernet" in done.stderr
    assert "Traceback" not in done.stderr
