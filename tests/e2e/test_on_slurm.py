"""Real FSDP2 on the real cluster, 2 hosts x 2 workers: nobody can tell from the loss curve.

Everything as an ordinary user, with `fsdpq` alone, against real preemption and real time limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.layout import RunLayout
from tests.slurm.cluster import Cluster
from tests.slurm.user import FsdpqUser, attempts, last_step, steps

pytestmark = pytest.mark.e2e

# Four workers that import torch on two cores.
START_S = 240
STEPS = 40


def train(**changes: Any) -> dict[str, Any]:
    """The `train:` part of a job that takes a small Llama through some of fsdpq's own source."""
    source = Path(__file__).parents[2] / "orchestrator"
    model = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return {
        "model": {"config": model},
        "data": {"text_files": [f"{source}/slurm/*.py"], "seq_len": 64},
        "steps": STEPS,
        "global_batch": 8,
        "lr": 1e-3,
        "warmup_steps": 5,
        "precision": "fp32",
        "checkpoint": {"every_steps": 100},
        **changes,
    }


def curve(run: RunLayout) -> list[tuple[Any, ...]]:
    """What must not differ by a bit: step, loss, gradient norm, learning rate, samples."""
    keys = ("step", "loss", "grad_norm", "lr", "samples")
    return [tuple(str(line[key]) for key in keys) for line in steps(run)]


def positions(run: RunLayout) -> list[int]:
    """The sample positions that a run used, in order."""
    return [first + i for first, count in (s["samples"] for s in steps(run)) for i in range(count)]


@pytest.fixture(scope="module")
def straight() -> dict[str, list[tuple[Any, ...]]]:
    """The curve of an uninterrupted run, once it has been made."""
    return {}


def uninterrupted(
    cluster: Cluster, user: FsdpqUser, kept: dict[str, list[tuple[Any, ...]]]
) -> list[tuple[Any, ...]]:
    if "curve" not in kept:
        run = user.submit("straight", train=train())
        cluster.wait_for(run.finished.exists, START_S, "the uninterrupted run finishes")
        kept["curve"] = curve(run)
    return kept["curve"]


@pytest.mark.parametrize("user_signal", [True, pytest.param(False, marks=pytest.mark.long)])
def test_preempted_twice_bit_for_bit(
    cluster: Cluster,
    user: FsdpqUser,
    straight: dict[str, list[tuple[Any, ...]]],
    user_signal: bool,
) -> None:
    expected = uninterrupted(cluster, user, straight)
    cluster.reconfigure(user_signal=user_signal)
    run = user.submit("bitwise", train=train())
    watcher = user.start("watch", "bitwise", "--every", "1")
    for number in (1, 2):
        goal = 10 * number
        cluster.wait_for(lambda goal=goal: last_step(run) >= goal, START_S, "it trains")  # type: ignore[misc]
        cluster.submit_prod(nodes=4, seconds=2)
        cluster.wait_for(lambda n=number: attempts(run) > n, START_S, "it is back")  # type: ignore[misc]
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    assert watcher.wait(timeout=30) == 0
    status = user.status("bitwise")
    assert len(status["attempts"]) == 3
    assert {row["job_id"] for row in status["attempts"]} == {status["job_id"]}
    assert [row["steps_lost"] for row in status["attempts"]] == [0, 0, 0]
    assert curve(run) == expected
    assert positions(run) == list(range(8 * STEPS))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_time_limit(cluster: Cluster, user: FsdpqUser) -> None:
    """Two minutes with a lead of 10 s, for what takes longer."""
    big = train()["model"]["config"] | {"hidden_size": 256, "intermediate_size": 1024}
    data = {**train()["data"], "seq_len": 256}
    work = train(model={"config": big}, data=data, steps=200)
    run = user.submit("limited", train=work, time_limit="00:02:00", notice={"lead_s": 10})
    user.start("watch", "limited", "--every", "1")
    cluster.wait_for(run.finished.exists, 900, "it finishes")
    status = user.status("limited")
    assert len(status["attempts"]) >= 2
    assert {row["steps_lost"] for row in status["attempts"]} == {0}
    assert [line["step"] for line in steps(run)] == list(range(1, 201))
    assert len(user.all_jobs()) == 1


@pytest.mark.long
def test_resume_on_another_number_of_workers(cluster: Cluster, user: FsdpqUser) -> None:
    """Four workers, then two, then four: the position holds, the loss agrees to rounding."""
    expected = user.submit("four", train=train())
    cluster.wait_for(expected.finished.exists, START_S, "the uninterrupted run finishes")
    run = user.submit("other", train=train())
    for number, nodes in ((1, 1), (2, 2)):
        trains = lambda n=number: len([s for s in steps(run) if s["attempt"] == n]) >= 8  # noqa: E731
        cluster.wait_for(trains, START_S, "it trains")
        user.fsdpq("cancel", "other")
        cluster.wait_for(lambda: not user.live_jobs(), 60, "it saves and stops")
        run.cancelled.unlink()
        # The batch script takes its size from Slurm, so sbatch by hand changes it.
        user.sbatch(run, f"--nodes={nodes}")
        cluster.wait_for(lambda n=number: attempts(run) > n, START_S, "it is back")  # type: ignore[misc]
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    assert [line["world_size"] for line in steps(run)][:: STEPS - 1] == [4, 4]
    assert {line["world_size"] for line in steps(run)} == {2, 4}
    assert positions(run) == list(range(8 * STEPS))
    for one, other in zip(steps(expected), steps(run), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
