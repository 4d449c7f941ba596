"""The Slurm of `tests/rounds` answers as a real one does: the same commands, the same shape."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchestrator.slurm import commands, parse
from tests.rounds import scene
from tests.rounds.jobs import Slurm

from .cluster import Cluster
from .user import FsdpqUser

WAIT_S = 60.0
NAME = "llama-compared"
SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --dependency=singleton
#SBATCH --requeue
#SBATCH --output=/dev/null
run_dir={run}
{body}
"""
Shape = list[object]
Row = tuple[str, int | None, bool]  # state, exit code, whether it started


class Machine:
    """A login node: one of a real cluster, or one of the fake."""

    def __init__(
        self,
        run: Callable[[Sequence[str]], subprocess.CompletedProcess[str]],
        *,
        uid: int,
        folder: Path,
        pause: Callable[[], None],
    ) -> None:
        self.run = run
        self.uid = uid
        self.folder = folder
        self.pause = pause

    def record(self, job_id: str) -> Any:
        """Return what squeue says of a job; None if it does not."""
        text = self.run(commands.squeue(self.uid)).stdout
        found = parse.squeue(text, names=frozenset({NAME}))
        return next((job for job in found if job.job_id == job_id), None)

    def wait(self, job_id: str, state: str, reason: str | None = None) -> Shape:
        """Wait for a state and return the shape of the row."""
        until = time.monotonic() + WAIT_S
        while (job := self.record(job_id)) is None or not (
            job.state == state and reason in (None, job.reason)
        ):
            assert time.monotonic() < until, f"job {job_id} is {job}, and not {state} ({reason})"
            self.pause()
        times = [value is not None for value in (job.submit, job.start)]
        return [str(job.state), job.restart, job.exit_code, job.signal, *times]

    def said(self, argv: Sequence[str], job_id: str) -> Shape:
        """Return exit code and message of a command, without the id."""
        done = self.run(argv)
        return [done.returncode, done.stderr.strip().replace(job_id, "N")]

    def accounted(self, job_id: str, *, last: str) -> list[Row]:
        """Return accounting's rows once the last one says ``last``; slurmdbd is seconds behind."""
        until = time.monotonic() + WAIT_S
        while not (rows := self._rows(job_id)) or rows[-1][0] != last:
            if time.monotonic() > until:
                break
            self.pause()
        return rows

    def _rows(self, job_id: str) -> list[Row]:
        rows = parse.sacct(self.run(commands.sacct([job_id])).stdout, names=frozenset({NAME}))
        return [(str(row.state), row.exit_code, row.start is not None) for row in rows]


def differences(one: dict[str, Shape], other: dict[str, Shape]) -> dict[str, tuple[Shape, Shape]]:
    """Return what is not the same, by name."""
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def play(machine: Machine, write: Callable[[str, str], str]) -> dict[str, Shape]:
    """Type the same commands and return the shapes of the answers."""
    shapes: dict[str, Shape] = {}
    first = parse.job_id(machine.run(commands.sbatch(write("fails", "sleep 1; exit 1"))).stdout)
    shapes["failed"] = machine.wait(first, "FAILED")
    shapes["accounting, failed"] = list(machine.accounted(first, last="FAILED"))
    second = parse.job_id(machine.run(commands.sbatch(write("runs", "sleep 600"))).stdout)
    shapes["running"] = machine.wait(second, "RUNNING")
    third = parse.job_id(machine.run(commands.sbatch(write("waits", "sleep 600"))).stdout)
    shapes["singleton"] = machine.wait(third, "PENDING", "Dependency")
    machine.run(commands.cancel(third))
    shapes["cancelled while it waits"] = machine.wait(third, "CANCELLED")[:2]
    shapes["requeue"] = machine.said(commands.requeue(second), second)
    shapes["begin time"] = machine.wait(second, "PENDING", "BeginTime")
    shapes["requeue again"] = machine.said(commands.requeue(second), second)
    shapes["start now"] = machine.said(commands.start_now(second), second)
    shapes["started"] = machine.wait(second, "RUNNING")
    machine.run(commands.cancel(second))
    shapes["cancelled"] = machine.wait(second, "CANCELLED")[:2]
    shapes["resurrected"] = machine.said(commands.requeue(second), second)
    # What a cancelled script ends with depends on whether it had begun on the node.
    shapes["waits again"] = machine.wait(second, "PENDING", "BeginTime")[:2]
    machine.run(commands.start_now(second))
    shapes["runs again"] = machine.wait(second, "RUNNING")
    machine.run(commands.cancel(second))
    machine.wait(second, "CANCELLED")
    shapes["accounting, all of it"] = [
        (state, started) for state, _, started in machine.accounted(second, last="CANCELLED")
    ]
    for name, argv in (
        ("requeue of none", commands.requeue("99999")),
        ("start of none", commands.start_now("99999")),
        ("cancel of none", commands.cancel("99999")),
    ):
        shapes[name] = machine.said(argv, "99999")
    return shapes


def test_the_same_commands_get_the_same_answers(
    cluster: Cluster, user: FsdpqUser, tmp_path: Path
) -> None:
    real = play(*_real(cluster, user))
    fake = play(*_fake(tmp_path / "round"))
    assert differences(real, fake) == {}


@pytest.mark.parametrize("what", ["squeue", "sbatch", "requeue"])
def test_the_same_words_without_a_controller(
    cluster: Cluster, user: FsdpqUser, tmp_path: Path, what: str
) -> None:
    machine, write = _real(cluster, user)
    other, write_other = _fake(tmp_path / "round")
    cluster.stop_controller()
    shapes = []
    for one, make in ((machine, write), (other, write_other)):
        script = make("late", "true")
        if one is other:
            with Slurm(str(other.folder)) as slurm:
                down = {"call": what, "who": None, "fault": "down", "seconds": 0.0}
                slurm.state["faults"] = [down]
        argv = {
            "squeue": commands.squeue(one.uid),
            "sbatch": commands.sbatch(script),
            "requeue": commands.requeue("7"),
        }[what]
        shapes.append(one.said(argv, "7"))
    cluster.start_controller()
    assert shapes[0] == shapes[1]


def _real(cluster: Cluster, user: FsdpqUser) -> tuple[Machine, Callable[[str, str], str]]:
    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return cluster.run(list(argv), cwd=user.home, check=False)

    def write(name: str, body: str) -> str:
        path = user.home / f"{name}.sbatch"
        text = SCRIPT.format(name=NAME, run="/nowhere", body=body)
        cluster.run(["sh", "-c", 'cat > "$0"', str(path)], input=text)
        return str(path)

    uid = int(cluster.run(["id", "-u", "alice"]).stdout)
    return Machine(run, uid=uid, folder=user.home, pause=lambda: time.sleep(0.3)), write


def _fake(folder: Path) -> tuple[Machine, Callable[[str, str], str]]:
    layout = scene.build(folder, "failed", Random(1))
    with Slurm(str(folder)) as slurm:
        slurm.jobs.clear()
        # As the scripts below end; the fake does not run them.
        slurm.state.update(lives=[{"after_s": 1.0, "end": "no progress"}], faults=[])

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        return subprocess.run(argv, env=path, capture_output=True, text=True, check=False)

    def write(name: str, body: str) -> str:
        path = folder / f"{name}.sbatch"
        path.write_text(SCRIPT.format(name=NAME, run=layout.root, body=body))
        return str(path)

    def pause() -> None:
        with Slurm(str(folder)) as slurm:
            slurm.clock.forward(0.5)

    return Machine(run, uid=os.getuid(), folder=folder, pause=pause), write
