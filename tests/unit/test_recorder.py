from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from orchestrator import recorder, resources
from orchestrator.launchplan.script import render
from orchestrator.rundir.environment import parse_packages
from orchestrator.rundir.layout import RunLayout

from .builders import make_run, plan, site, spec
from .repository import commit, make_repository, write

processes = pytest.mark.processes


def test_packages_are_read_from_the_names_of_folders(tmp_path: Path) -> None:
    names = ["torch-2.13.0+cpu.dist-info", "Typing_Extensions-4.1.dist-info", "x.dist-info"]
    names += [
        "old-1.0-py3.11.egg-info",
        "a.b-2.egg-info",
        "torch",
        "nvidia_nccl_cu12-2.27.dist-info",
    ]
    for name in names:
        (tmp_path / "first" / name).mkdir(parents=True)
    (tmp_path / "second" / "torch-1.0.dist-info").mkdir(parents=True)
    path = [str(tmp_path / "first"), str(tmp_path / "second"), "/no/such"]
    assert recorder.packages(path) == {
        "torch": "2.13.0+cpu",
        "typing-extensions": "4.1",
        "old": "1.0",
        "a-b": "2",
        "nvidia-nccl-cu12": "2.27",
    }


def test_they_are_those_that_python_knows() -> None:
    found = recorder.packages(sys.path)
    assert found["pytest"] == metadata.version("pytest")
    assert found["pyyaml"] == metadata.version("pyyaml")


@pytest.mark.parametrize(
    ("environment", "image"),
    [
        ({}, None),
        ({"APPTAINER_CONTAINER": "", "SLURM_CONTAINER": "/a.sif"}, "/a.sif"),
        (
            {"SINGULARITY_CONTAINER": "docker://u:secret@host/i@sha256:1"},
            "docker://host/i@sha256:1",
        ),
    ],
)
def test_the_container(environment: dict[str, str], image: str | None) -> None:
    assert recorder.container(environment) == image


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Rel", "570.86.15"),
        ("", None),
    ],
)
def test_the_driver(text: str, version: str | None) -> None:
    assert recorder.driver(text) == version


def go(run: RunLayout, **env: str) -> dict[str, Any]:
    """Run the recorder as a node does, and return what it wrote."""
    run.recorder.write_text(resources.recorder())
    folder = run.attempt(len(list(run.attempts.iterdir())) + 1)
    folder.root.mkdir()
    variables = {"FSDPQ_RUN_DIR": str(run.root), "FSDPQ_ATTEMPT_DIR": str(folder.root)}
    argv = [sys.executable, str(run.recorder)]
    subprocess.run(argv, env={"PATH": os.environ["PATH"], **variables, **env}, check=True)
    found: dict[str, Any] = json.loads(folder.environment.read_text())
    assert stat.S_IMODE(folder.environment.stat().st_mode) == 0o600
    return found


@processes
def test_what_is_written_down(tmp_path: Path) -> None:
    run = make_run(tmp_path / "it's llama")
    write(run.root, "json.py", "raise SystemExit('a module of the run directory')")
    found = go(run, LOADEDMODULES="gcc/12:cuda/12.4", HF_TOKEN="hunter2", PYTHONSAFEPATH="1")
    again = go(run, PYTHONSAFEPATH="1")
    assert found["modules"] == ["gcc/12", "cuda/12.4"]
    assert found["python"]["executable"] == sys.executable
    assert found["python"]["version"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert "hunter2" not in json.dumps(found)
    assert found["code"] is None
    (path,) = run.environments.iterdir()
    assert path.stem == found["packages"] == again["packages"]
    assert parse_packages(path.read_text())["pytest"] == metadata.version("pytest")


@processes
def test_live_code(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", train="1")
    run = make_run(tmp_path / "llama")
    script = str(project / "train.py")
    run.code_record.write_text(
        json.dumps({"mode": "live", "root": str(project), "script": script, "fsdpq": {}})
    )
    codes = [go(run)["code"], go(run, GIT_DIR="/nowhere")["code"]]
    write(project, "other.py")
    write(project, "train.py", "2")
    codes.append(go(run)["code"])
    commit(project)
    codes.append(go(run)["code"])
    assert codes[0] == codes[1]
    assert codes[0]["commit"] == codes[2]["commit"] != codes[3]["commit"]
    assert codes[0]["difference"] not in (None, codes[2]["difference"])
    assert codes[0]["script"] != codes[2]["script"] == codes[3]["script"]
    run.code_record.write_text('{"mode": "live", "root": null, "script": null}')
    nothing = go(run, PATH="/nowhere")["code"]
    assert (nothing["commit"], nothing["difference"], nothing["script"]) == (None, None, None)


def test_an_older_python_reads_it() -> None:
    ast.parse(resources.recorder(), feature_version=(3, 8))


def test_only_folders_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened for each package: on a shared file system that takes its time."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file is opened")

    monkeypatch.setattr(Path, "open", refuse)
    assert recorder.packages(sys.path)


@processes
def test_the_node_does_not_wait_for_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama")
    run.recorder.write_text("import time\ntime.sleep(60)\n")
    python = write(
        tmp_path, "python", f'#!/bin/bash\n[[ $1 == -m ]] || exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    made = plan(spec(python=str(python)), site(scheduler="local"), run_dir=str(run.root))
    run.node_script.write_text(render(made)["node.sh"])
    folder = run.attempt(1)
    folder.root.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "FSDPQ_RUN_DIR": str(run.root),
        "FSDPQ_ATTEMPT_DIR": str(folder.root),
        "FSDPQ_HEAD": "127.0.0.1",
        "FSDPQ_PORT": "20000",
    }
    with subprocess.Popen(["bash", run.node_script], env=env, start_new_session=True) as node:
        assert node.wait(30) == 0
    os.killpg(node.pid, signal.SIGKILL)
