"""The examples of jobs/ on the real cluster: a plain script, and those of three frameworks.

Each is submitted as a user would, preempted by a job of higher priority, and comes back: no step is
lost, none is done twice, and the loss is that of a run that nobody interrupted.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.rundir.layout import RunLayout
from tests.slurm.cluster import Cluster
from tests.slurm.user import FsdpqUser, attempts, last_step, steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

JOBS = Path(__file__).parents[2] / "jobs"
PROGRAMS = Path(__file__).parents[1] / "slurm" / "programs"
# Two workers that import torch and a framework, on two cores.
START_S = 300
PACKAGES = {
    "toy_fsdp2": "torch",
    "hf_trainer": "accelerate",
    "lightning_fit": "lightning",
    "torchtitan_run": "torchtitan",
}


def job_keys(name: str, *, steps: int) -> dict[str, Any]:
    """The program of a job file of jobs/, shortened: `script` and `args`."""
    job = yaml.safe_load((JOBS / f"{name}.yaml").read_text())
    script = str(JOBS / job["script"])
    if name != "torchtitan_run":
        return {"script": script, "args": [str(steps)]}
    # torchtitan knows no CPUs, and has to be told of them.
    own = ["--module=titan_tiny", "--config=tiny", "--dump_folder=out", "--debug.seed=7"]
    args = [script, *own, f"--training.steps={steps}", "--checkpoint.interval=50"]
    return {"script": str(PROGRAMS / "titan_tiny.py"), "args": args}


def submit(user: FsdpqUser, name: str, program: str, *, steps: int) -> RunLayout:
    keys = job_keys(program, steps=steps)
    # One worker a host: the ranks meet over the network, and as few as can be import at once.
    return user.submit(name, gpus_per_node=1, notice={"lead_s": 8}, **keys)


def losses(run: RunLayout) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in steps(run)]


# The plain script is part of every run of the tests, the frameworks' of `make long`.
EXAMPLES = [
    pytest.param(name, marks=() if name == "toy_fsdp2" else pytest.mark.long) for name in PACKAGES
]


@pytest.mark.parametrize("program", EXAMPLES)
def test_an_example_survives_a_preemption(cluster: Cluster, user: FsdpqUser, program: str) -> None:
    package = PACKAGES[program]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{program}.py needs the package {package}: pip install --group byo")
    last = 24 if program == "torchtitan_run" else 60
    straight = submit(user, "straight", program, steps=last)
    run = submit(user, "preempted", program, steps=last)
    user.start("watch", "--every", "1")
    cluster.wait_for(lambda: last_step(run) >= 3, START_S, "it trains")
    cluster.submit_prod(nodes=4, seconds=2)
    cluster.wait_for(lambda: attempts(run) > 1, START_S, "it is back")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    cluster.wait_for(straight.finished.exists, START_S, "the other one finishes")
    status = user.status("preempted")
    assert {row["steps_lost"] for row in status["attempts"]} == {0}
    assert status["checkpoint_step"] == status["step"] == last
    assert status["loss"] == steps(run)[-1]["loss"]
    assert [step for step, _ in losses(run)] == list(range(1, last + 1))
    for (step, one), (_, other) in zip(losses(straight), losses(run), strict=True):
        assert other == pytest.approx(one, rel=1e-4), f"step {step}"
