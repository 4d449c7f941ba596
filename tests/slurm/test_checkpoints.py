"""Damaged checkpoints on a real cluster: the one before is used, and status says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster
from .user import FsdpqUser, attempts, last_step, steps

START_S = 90


def remove_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def truncate(checkpoint: Path) -> None:
    shard = checkpoint / "rank-2.json"
    shard.write_bytes(shard.read_bytes()[:-1])


def flip(checkpoint: Path) -> None:
    shard = checkpoint / "rank-2.json"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def stop_and_wait(cluster: Cluster, user: FsdpqUser, run: RunLayout) -> None:
    """Preempt the run without a watcher; it waits two minutes to begin again."""
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: user.status(run.name)["state"] == "requeued", START_S, "it waits")
    cluster.wait_for(lambda: len(user.live_jobs()) == 1, START_S, "it waits alone")


@pytest.mark.parametrize("damage", [remove_manifest, truncate, flip])
def test_damaged_newest_checkpoint(cluster: Cluster, user: FsdpqUser, damage: object) -> None:
    run = user.count("damaged", [30, 0.3, 4])
    cluster.wait_for(lambda: last_step(run) >= 6, START_S, "it trains past a checkpoint")
    stop_and_wait(cluster, user, run)
    newest = user.status("damaged")["checkpoint_step"]
    assert newest == last_step(run)
    before = (newest - 1) // 4 * 4
    damage(run.checkpoints / f"step-{newest}")  # type: ignore[operator]
    user.watch_once("damaged")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    status = user.status("damaged")
    assert [item["step"] for item in status["quarantined"]] == [newest]
    assert status["attempts"][1]["first_step"] == before + 1
    assert status["attempts"][0]["steps_lost"] == newest - before
    assert f"quarantined: checkpoint of step {newest}" in user.fsdpq("status", "damaged").stdout
    again = [line["step"] for line in steps(run) if line["attempt"] == 2]
    assert again == list(range(before + 1, 31))


def test_no_usable_checkpoint_is_an_error(cluster: Cluster, user: FsdpqUser) -> None:
    run = user.count("hopeless", [30, 0.3, 4])
    cluster.wait_for(lambda: last_step(run) >= 6, START_S, "it trains past a checkpoint")
    stop_and_wait(cluster, user, run)
    for checkpoint in run.checkpoints.glob("step-*"):
        flip(checkpoint)
    watcher = user.start("watch", "hopeless", "--every", "1")
    cluster.wait_for(lambda: watcher.poll() is not None, START_S, "the watcher gives up")
    status = user.status("hopeless")
    assert status["state"] == "failed"
    assert status["cause"] == "no usable checkpoint"
    assert attempts(run) == 2
    assert not [line for line in steps(run) if line["attempt"] == 2]
