"""`fsdpq sites detect` and `fsdpq init` on the real cluster: nobody tells them what it is."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from orchestrator.profile import load_profile
from orchestrator.rundir.layout import RunLayout

from .user import COUNTER, FsdpqUser

PROBE_S = 180
# Where torchrun is imported on a busy machine.
STARTS_S = 240
# Four workers that import torch on two cores.
TRAINS_S = 280


def detect(user: FsdpqUser, *args: str) -> dict[str, Any]:
    """Return what `fsdpq sites detect --json` says."""
    done = user.fsdpq("sites", "detect", "--json", *args, timeout=PROBE_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_reproduces_the_configuration(user: FsdpqUser) -> None:
    path = user.home / "here.yaml"
    found = detect(user, "-o", str(path))
    profile = load_profile(str(path), base=user.home)
    config = user.cluster.config
    grace = config.grace_s
    terms = {
        name: (one.preempt, one.grace_s, one.preempt_signal, one.requeue_default)
        for name, one in profile.partitions.items()
    }
    assert terms == {
        "spot": ("requeue", grace, "user", True),
        "spotcancel": ("cancel", grace, "user", True),
        "nograce": ("requeue", 0, None, True),
        "prod": ("off", None, None, None),
        # Nothing of a higher tier has its node.
        "a100": ("off", None, None, None),
    }
    assert (profile.name, profile.default_partition) == ("fsdpq", "spot")
    assert profile.gpu is not None
    assert (profile.gpu.type, profile.gpu.per_node, profile.cpus_per_node) == ("h100", 2, 8)
    a100 = profile.partitions["a100"]
    assert a100.gpu is not None
    assert (a100.gpu.type, a100.nodes, profile.partitions["prod"].nodes) == ("a100", 1, 4)
    assert (profile.partitions["spot"].default_time_limit, a100.time_limit) == (3600, None)
    assert profile.partitions["prod"].priority_tier == 100
    assert found["left_out"] == []
    assert "accounts of alice: research (the default)" in profile.notes


def test_without_a_signal_and_without_accounting(user: FsdpqUser) -> None:
    user.cluster.reconfigure(user_signal=False)
    user.cluster.stop_accounting()
    found = detect(user, "-o", "-", "--partition", "spotcancel", "--partition", "prod")
    profile = found["profile"]
    assert profile["partitions"]["spotcancel"]["preempt_signal"] == "TERM"
    assert profile["default_partition"] == "spotcancel"
    assert set(profile["partitions"]) == {"spotcancel", "prod"}
    assert any("sacctmgr" in text for text in found["left_out"])


def test_without_a_controller(user: FsdpqUser) -> None:
    user.cluster.stop_controller()
    done = user.fsdpq("sites", "detect", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unable to contact slurm controller" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_profile_submits_a_job_unchanged(user: FsdpqUser) -> None:
    """In the user's own folder, so that its name is enough; each partition takes a job."""
    user.fsdpq("sites", "detect")
    for partition in ("spot", "spotcancel", "nograce", "prod", "a100"):
        site: dict[str, Any] = {"site": "fsdpq", "partition": partition}
        path = user.job_file(f"try-{partition}", script=str(COUNTER), nodes=1, **site)
        rendered = user.home / partition
        user.fsdpq("render", str(path), "-o", str(rendered))
        script = rendered / "script.sbatch"
        user.cluster.run(["sbatch", "--test-only", str(script)], cwd=user.home)
    run = user.count("whole", [20, 0.05, 5], site="fsdpq")
    user.cluster.wait_for(run.finished.exists, STARTS_S, "it runs to its end")
    submitted = run.script.read_text()
    assert "#SBATCH --gpus-per-node=2\n" in submitted
    assert "#SBATCH --partition=spot\n" in submitted


def test_it_does_not_write_over_a_profile(user: FsdpqUser) -> None:
    user.fsdpq("sites", "detect")
    again = user.fsdpq("sites", "detect", check=False)
    assert again.returncode == 1
    assert "--force" in again.stderr
    user.fsdpq("sites", "detect", "--force")


def test_the_probe(user: FsdpqUser) -> None:
    """These hosts have no adapters and no nvidia-smi; what they have is found."""
    found = detect(user, "--node", "--nodes", "2", "-o", "-")
    evidence = found["profile"]["evidence"]
    assert found["profile"]["fabric"] == {"kind": "ethernet", "topology": {"kind": "none"}}
    assert "no active adapter" in evidence["fabric.kind"]
    assert any("/dev/shm on n" in note for note in found["profile"]["notes"])
    assert user.live_jobs() == []


def test_a_probe_that_gets_no_node(user: FsdpqUser) -> None:
    """The rest is written all the same, and no job stays behind."""
    user.cluster.submit_prod(nodes=4, seconds=1000)
    found = detect(user, "--node", "--wait", "0.1", "-o", "-")
    assert any(text.startswith("--node: ") for text in found["left_out"])
    assert "prod" in found["profile"]["partitions"]
    user.cluster.wait_for(lambda: user.live_jobs() == [], 30, "no job of alice is left")


ENDS = [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize("number", ENDS)
def test_a_probe_that_waits_is_cancelled_whatever_ends_fsdpq(user: FsdpqUser, number: int) -> None:
    user.cluster.submit_prod(nodes=4, seconds=1000)
    started = user.start("sites", "detect", "--node", "-o", "-")
    user.cluster.wait_for(user.live_jobs, PROBE_S, "the probe's job waits")
    user.send(started, number)
    user.cluster.wait_for(lambda: user.live_jobs() == [], 60, "no job of alice is left")


@pytest.mark.parametrize("number", ENDS)
def test_a_probe_that_runs_is_cancelled_too(user: FsdpqUser, number: int) -> None:
    programs = user.home / "programs"
    user.cluster.run(["mkdir", str(programs)])
    user.write(programs / "nvidia-smi", "#!/bin/bash\ntouch ~/asked\nexec sleep 1000\n", mode=0o755)
    user.add_to_path(programs)
    started = user.start("sites", "detect", "--node", "-o", "-")
    user.cluster.wait_for((user.cluster.home() / "asked").exists, PROBE_S, "the probe runs")
    user.send(started, number)
    user.cluster.wait_for(lambda: user.live_jobs() == [], 60, "no job of alice is left")
    user.cluster.run(["rm", str(user.cluster.home() / "asked")])


@pytest.mark.timeout(600)
def test_init_and_submit(user: FsdpqUser) -> None:
    """From nothing to a two-node job that trains to its end, without a question."""
    folder = user.home / "first"
    done = user.fsdpq("init", str(folder), "--yes")
    command = done.stdout.splitlines()[-1].removeprefix("next: fsdpq ").split()
    # The hosts claim eight processors each, and share the two of this machine.
    user.fsdpq(*command, "--set", "cpus_per_node=2", "--set", "train.steps=40")
    run = RunLayout(user.runs / "first")
    assert "#SBATCH --nodes=2\n" in run.script.read_text()
    user.cluster.wait_for(run.finished.exists, TRAINS_S, "it trains to its end")
    assert (user.sites / "fsdpq.yaml").is_file()
