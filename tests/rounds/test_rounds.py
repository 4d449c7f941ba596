"""A short, seeded part of `make rounds`, and that it would notice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rounds import check, scene
from tests.rounds.rounds import FAULTS

REPOSITORY = Path(__file__).parents[2]


def rounds(count: int, seed: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Play rounds in a process of its own: they fork, and take in orphans."""
    argv = [sys.executable, "-m", "tests.rounds", "--rounds", str(count), "--seed", str(seed)]
    return subprocess.run(
        [*argv, "--jobs", "2", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_watchers_that_are_killed_submit_once_and_lose_nothing() -> None:
    done = rounds(24, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = re.search(r"processes killed +(\d+)", done.stdout)
    assert killed
    assert int(killed[1]) > 40


def test_watchers_that_claim_nothing_are_found_out() -> None:
    done = rounds(3, 1, "--sabotage")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "two jobs at once" in done.stdout


def submitted(job_id: str) -> dict[str, object]:
    return {"what": "submit", "job_id": job_id, "asked_by": "w1", "at": 1.0}


ENDED = {"what": "end", "job_id": "7", "state": "FAILED", "by": "slurm", "at": 2.0}
STARTED = {"what": "start", "job_id": "8", "attempt": 2, "at": 9.0}


def test_the_judgement() -> None:
    assert not check.problems([submitted("7"), ENDED, submitted("8")], cancelled_at=None)
    assert check.problems([submitted("7"), submitted("8"), ENDED], cancelled_at=None)
    assert check.problems([submitted("8"), STARTED], cancelled_at=5.0)
    assert not check.problems([submitted("8"), STARTED], cancelled_at=10.0)
    requeued = {**ENDED, "state": "REQUEUED", "by": "w1"}
    assert check.problems([submitted("7"), requeued], cancelled_at=None)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_what_lives_at_the_end(state: str) -> None:
    job = {"id": "7", "state": state, "start": 1.0, "begin": 1.0}
    assert bool(check.lost({"jobs": {"7": job}}, cancelled=False)) == (state == "PENDING")
    assert check.lost({"jobs": {"7": job}}, cancelled=True)
    assert check.lost({"jobs": {}}, cancelled=False)
    assert not check.lost({"jobs": {}}, cancelled=True)


def test_there_is_a_scene_for_each_end_that_needs_a_watcher() -> None:
    wanted = {"failed", "preempted", "forgotten", "no answer", "requeue refused"}
    assert wanted <= set(scene.SCENES)
    assert {"kill-before", "kill-late", "effect-kill", "answer-kill"} <= set(FAULTS["sbatch"])
