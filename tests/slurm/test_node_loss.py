"""Nodes that die: loudly and silently, in the middle of a step and of a save."""

from __future__ import annotations

import pytest

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

START_S = 90
# SlurmdTimeout is 15 s here; Slurm notices after one to two of them.
LOSS_S = 120


@pytest.mark.parametrize(
    ("silent", "in_save"),
    [
        (True, False),
        (False, True),
        pytest.param(False, False, marks=pytest.mark.long),
        pytest.param(True, True, marks=pytest.mark.long),
    ],
)
def test_back_on_the_remaining_nodes(
    cluster: Cluster, user: FsdpqUser, silent: bool, in_save: bool
) -> None:
    save = ["--hang-in-save", 8] if in_save else []
    run = user.count("lost", [20, 0.5, 4, *save])
    user.start("watch", "lost", "--every", "1")
    ready = (run.root / "hanging").exists if in_save else (lambda: last_step(run) >= 6)
    cluster.wait_for(ready, START_S, "it is in the middle")
    host = "n1" if silent else "n2"
    cluster.power_off(host) if silent else cluster.kill_host(host)
    cluster.wait_for(lambda: attempts(run) == 2, LOSS_S, "it is back")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    status = user.status("lost")
    assert status["state"] == "finished"
    assert host not in status["attempts"][1]["nodes"]
    first, second = status["attempts"]
    assert second["first_step"] == 5
    # Where it was the batch host that died, nobody was left to write it down.
    assert first["cause"] in ("node failure", "put back by Slurm"), run.output.read_text()
    assert first["steps_lost"] == first["last_step"] - 4
    assert len(user.all_jobs()) == 1
    done = [line["step"] for line in steps(run) if line["attempt"] == 2]
    assert done == list(range(5, 21))


def test_controller_restarted_in_between(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.count("ctl", [200, 0.3, 100])
    user.start("watch", "ctl", "--every", "1")
    cluster.wait_for(lambda: last_step(run) >= 3, START_S, "it trains")
    cluster.stop_controller()
    # The watcher must not take silence for the end of the job.
    assert user.status("ctl")["state"] == "unreachable"
    cluster.start_controller()
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: user.status("ctl")["state"] == "requeued", START_S, "it waits")
    stopped_at = last_step(run)
    cluster.restart_controller()
    cluster.wait_for(lambda: attempts(run) == 2, START_S, "it is back")
    cluster.wait_for(lambda: last_step(run) > stopped_at, START_S, "it trains on")
    done = [line["step"] for line in steps(run)]
    assert done == list(range(1, len(done) + 1))
    assert len(user.all_jobs()) == 1
