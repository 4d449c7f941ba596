"""Runs in containers come back as others do. The runtimes are stand-ins: see `containers/`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster
from .user import SITE, FsdpqUser, attempts, last_step, steps

HERE = Path(__file__).parent
START_S = 90
HOSTILE = 'it\'s "$HOME" `id` $(touch evil); \\ *'
# What the profile says of each besides.
RUNTIMES: dict[str, dict[str, Any]] = {
    "pyxis": {"options": ["--no-container-mount-home"]},
    "edf": {"options": ["com.hooks.aws_ofi_nccl.enabled=true"]},
    "apptainer": {},
    "shifter": {"options": ["--module=gpu"]},
    "podman-hpc": {},
}


@pytest.fixture
def site(cluster: Cluster, user: FsdpqUser) -> Iterator[FsdpqUser]:
    """Alice's login node with all runtimes."""
    _write_commands(user)
    stack = cluster.work / "slurm" / "plugstack.conf"
    stack.write_text(f"required {_plugin(cluster)}\n")
    yield user
    stack.unlink()


def _write_commands(user: FsdpqUser) -> None:
    folder = user.home / "bin"
    user.cluster.run(["mkdir", str(folder)])
    for name in ("apptainer", "shifter", "podman-hpc"):
        text = (
            f'#!/bin/sh\nexec {user.cluster.python} -I {HERE}/containers/commands.py {name} "$@"\n'
        )
        path = folder / name
        user.cluster.run(["sh", "-c", 'cat >"$0" && chmod 755 "$0"', str(path)], input=text)
    user.add_to_path(folder)


def _plugin(cluster: Cluster) -> Path:
    """The plug-in of srun and sbatch, built; skips without a compiler, or fails if all must run."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None and os.environ.get("FSDPQ_REQUIRE_SLURM"):
        pytest.fail("no C compiler, for the stand-in of srun's container plug-ins")
    if compiler is None:
        pytest.skip("no C compiler, for the stand-in of srun's container plug-ins")
    said = cluster.run(["srun", "--version"]).stdout.split()[-1]
    major, minor, micro = (int(part.split("-")[0]) for part in said.split(".")[:3])
    built = cluster.work / "slurm" / "containers.so"
    version = f"-DSLURM_VERSION={(major << 16) + (minor << 8) + micro}"
    source = HERE / "containers" / "plugin.c"
    subprocess.run([compiler, "-shared", "-fPIC", version, source, "-o", built], check=True)
    built.chmod(0o755)
    return built


def _image(user: FsdpqUser) -> Path:
    """An image without the shared file system and the checkout, with variables of its own."""
    path = user.home / "torch.sif"
    hidden = [user.cluster.shared, user.cluster.repository / "orchestrator"]
    lines = [f"hide {folder}" for folder in hidden]
    lines += ["NCCL_DEBUG=WARN", "PROMPT=of the image", "OF_THE_IMAGE=1"]
    user.cluster.run(["sh", "-c", 'cat >"$0"', str(path)], input="\n".join(lines) + "\n")
    return path


def _profile(user: FsdpqUser, runtime: str) -> Path:
    data = yaml.safe_load(SITE.read_text())
    data["container"] = {"runtime": runtime, "env": {"SET_INSIDE": HOSTILE}, **RUNTIMES[runtime]}
    data["env_container"] = {"LAUNCHED": "in a container"}
    data["env_host"] = {"LAUNCHED": "on the host"}
    data["partitions"]["spot"]["grace_s"] = 30
    path = user.home / f"{runtime}.site.yaml"
    user.cluster.run(["sh", "-c", 'cat >"$0"', str(path)], input=yaml.safe_dump(data))
    return path


@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param(name, marks=() if name in ("pyxis", "apptainer") else pytest.mark.long)
        for name in RUNTIMES
    ],
)
def test_a_run_in_a_container_is_preempted_and_comes_back(
    cluster: Cluster, site: FsdpqUser, runtime: str
) -> None:
    # On a busy machine ten seconds are short for what is a process more in each hop of a signal.
    cluster.apply(dataclasses.replace(cluster.config, grace_s=30))
    image = _image(site)
    run = site.submit(
        "boxed",
        site=str(_profile(site, runtime)),
        script=str(HERE / "programs" / "inside.py"),
        args=["20", "0.4", "100"],
        python=cluster.python,
        env={"PROMPT": HOSTILE},
        container={"image": str(image)},
    )
    site.start("watch", "boxed", "--every", "1")
    with _telling(run):
        cluster.wait_for(lambda: last_step(run) >= 5, START_S, "it trains")
        cluster.submit_prod(nodes=4, seconds=2)
        cluster.wait_for(lambda: attempts(run) > 1, START_S, "it is back")
        cluster.wait_for(run.finished.exists, START_S, "it finishes")
    status = site.status("boxed")
    with _telling(run):
        assert [row["cause"] for row in status["attempts"]] == ["notice, saved", "finished"]
        assert [row["steps_lost"] for row in status["attempts"]] == [0, 0]
        assert [line["step"] for line in steps(run)] == list(range(1, 21))
        _check_inside(run, image)


def _check_inside(run: RunLayout, image: Path) -> None:
    # The check before the start and the monitor ran inside too; on a busy machine some give up.
    checks = [json.loads(path.read_text()) for path in run.attempts.glob("*/preflight/node-*.json")]
    assert checks
    assert all(check["ok"] for check in checks)
    assert list(run.attempts.glob("*/nodes/*.json"))
    for number in (1, 2):
        attempt = run.attempt(number)
        found = json.loads((attempt.root / "inside.json").read_text())
        environment = found["environment"]
        assert environment["OF_THE_IMAGE"] == "1"
        assert environment["NCCL_DEBUG"] == "INFO"
        assert environment["PROMPT"] == environment["SET_INSIDE"] == HOSTILE
        assert environment["LAUNCHED"] == "in a container"
        assert found["package"].startswith(str(run.root))
        assert found["umask"] == 0o077
        record = json.loads(attempt.environment.read_text())
        assert record["container"].startswith(f"{image} of 20")


@contextmanager
def _telling(run: RunLayout) -> Iterator[None]:
    """Show what the scripts said of a failure in here: it may be the runtime's own words."""
    try:
        yield
    except (AssertionError, OSError, TimeoutError):
        print(run.output.read_text(errors="replace") if run.output.exists() else "no batch.log")
        raise
