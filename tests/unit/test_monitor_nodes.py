"""node.sh and its monitor: a reclaim of one node, and all that must not hinder the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.script import render
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from tests.clouds import Imds, serve
from tests.two_nodes import LAUNCHER, ROOT, TwoNodes

from . import polling
from .builders import site, spec

pytestmark = pytest.mark.processes
until = partial(polling.until, within_s=60)


def test_a_notice_of_one_node_stops_the_ranks_of_all(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    counter = ["100000", "0.02", "1000000"]
    job = TwoNodes(tmp_path, cloud="aws", python=str(launcher), counter=counter)
    quiet, doomed = Imds(), Imds()
    with serve(quiet) as here, serve(doomed) as there, job.start(here.url, there.url) as nodes:
        until(job.stepped, "no step is done")
        assert nodes[0].poll() is nodes[1].poll() is None
        doomed.interrupt("terminate", "2017-09-18T08:22:00Z")
        said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    status = store.read_json(job.attempt.status) or {}
    # Rank 0 heard it from the other node, by the vote, and by its name.
    assert (status["outcome"], status["reason"]) == ("stopped", "AWS-SPOT")
    assert (job.run.checkpoints / f"step-{status['step']}").is_dir()
    assert [path.name for path in job.attempt.root.glob("notice.*")] == ["notice.1"]
    reclaim = json.loads((job.attempt.reclaims / "node-1.json").read_text())
    assert reclaim["ends_at"] == 1505722920.0
    assert "AWS will terminate this spot instance" in said[1]
    assert "monitor" not in said[0]


# --- one node, whatever becomes of its monitor --------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start node.sh whose Python does as it is told, for torchrun and for the monitor."""
    started: list[subprocess.Popen[str]] = []

    def begin(*, job: str, monitor: str, folder: str = "a b'$(x)\"") -> subprocess.Popen[str]:
        where = tmp_path / folder
        where.mkdir()
        python = where / "py thon"
        text = (
            '[ "$2" != orchestrator.preflight ] || exit 0\n'
            f'if [ "$2" = orchestrator.monitor ]; then {monitor}; else {job}; fi'
        )
        python.write_text(f"#!/bin/bash\n{text}\n")
        python.chmod(0o755)
        run = RunLayout(where / "llama")
        job_ = spec(python=str(python))
        made = planning.plan(job_, site(cloud="gcp"), layout=run, cwd=where, python="")
        store.create(run, render(made))
        (run.attempts / "1").mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(tmp_path),
            "W": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "FSDPQ_RUN_DIR": str(run.root),
            "FSDPQ_ATTEMPT_DIR": str(run.attempts / "1"),
            "FSDPQ_HEAD": "127.0.0.1",
            "FSDPQ_PORT": "1",
        }
        process = subprocess.Popen(
            ["bash", run.node_script],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=where,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=30)


Node = Callable[..., subprocess.Popen[str]]
LISTENS = 'touch "$W/listens"; until [ -e "$FSDPQ_NOTICE_FILE" ]; do sleep 0.02; done'


def alive(path: Path) -> bool:
    """Return whether the process whose id stands in a file still runs."""
    try:
        state = Path(f"/proc/{path.read_text().strip()}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] != "Z"


def test_it_is_told_where_it_is(tmp_path: Path, node: Node) -> None:
    waits = 'until [ -e "$W/env" ]; do sleep 0.02; done'
    process = node(job=waits, monitor='env >"$W/env.new"; mv "$W/env.new" "$W/env"; exec sleep 60')
    process.communicate(timeout=30)
    found = dict(
        line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line
    )
    assert (found["FSDPQ_CLOUD"], found["FSDPQ_NODE"]) == ("gcp", "0")
    assert (found["FSDPQ_NOTICE_LEAD_S"], found["FSDPQ_STOP_ON_REBALANCE"]) == ("120", "0")
    assert found["FSDPQ_NOTICE_FILE"] == f"{found['FSDPQ_LOCAL_DIR']}/notice"
    assert found["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("code", [0, 3])
def test_it_ends_with_the_job_and_changes_no_exit_code(
    tmp_path: Path, node: Node, code: int
) -> None:
    waits = 'until [ -e "$W/pid" ]; do sleep 0.02; done'
    process = node(job=f"{waits}; exit {code}", monitor='echo $$ >"$W/pid"; exec sleep 1000')
    said, _ = process.communicate(timeout=30)
    assert (process.returncode, said) == (code, "")
    until(lambda: not alive(tmp_path / "pid"), "the monitor lives on")


def test_one_that_does_not_end_is_killed(tmp_path: Path, node: Node) -> None:
    waits = 'until [ -e "$W/pid" ]; do sleep 0.02; done'
    deaf = "trap '' TERM; echo $$ >\"$W/pid\"; while :; do sleep 0.1; done"
    process = node(job=waits, monitor=deaf)
    process.communicate(timeout=30)
    assert process.returncode == 0
    until(lambda: not alive(tmp_path / "pid"), "it is still there")


def test_a_python_without_it_costs_a_line(node: Node) -> None:
    """Python's own word for it, and at the end that of node.sh."""
    module = f"{sys.executable} -S -m orchestrator.no_such_module"
    # The job ends well after the monitor did.
    waits = 'until [ -e "$W/gone" ]; do sleep 0.02; done; sleep 0.5'
    process = node(job=f"{waits}; exit 0", monitor=f'{module}; touch "$W/gone"')
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    first, second = said.splitlines()
    assert "No module named orchestrator.no_such_module" in first
    assert second == "fsdpq: node 0: the monitor ended before the job did"


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_notice_to_all_processes_leaves_it_alone(
    tmp_path: Path, node: Node, number: signal.Signals
) -> None:
    real = f"exec {sys.executable} -m orchestrator.monitor"
    process = node(job=LISTENS, monitor=f'echo $$ >"$W/pid"; {real}')
    until((tmp_path / "listens").exists, "the job does not start")
    until((tmp_path / "pid").exists, "the monitor does not start")
    monitor = int((tmp_path / "pid").read_text())
    if number == signal.SIGUSR2:
        os.kill(monitor, number)  # whatever it is just doing
    assert alive(tmp_path / "pid")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 0
    until(lambda: not alive(tmp_path / "pid"), "the monitor lives on")


def test_nothing_is_left_when_node_sh_is_killed(tmp_path: Path, node: Node) -> None:
    real = f"exec {sys.executable} -m orchestrator.monitor"
    process = node(job=LISTENS, monitor=f'echo $$ >"$W/pid"; {real}')
    until((tmp_path / "pid").exists, "the monitor does not start")
    process.kill()
    until(lambda: not alive(tmp_path / "pid"), "the monitor outlives node.sh")
