"""A short storm like those of `make chaos`: a cluster of its own, two runs, six kinds of faults."""

from __future__ import annotations

import pytest

from tests.chaos.runner import storm
from tests.chaos.schedule import schedule

from .cluster import SlurmVersion

SEED = 7
RUNS = 2
KINDS = (
    "preemption",
    "power off",
    "full disk",
    "damaged checkpoint",
    "killed watcher",
    "controller stop",
)


@pytest.mark.timeout(900)
def test_nobody_can_tell_from_what_is_left(real_slurm: SlurmVersion) -> None:
    faults = schedule(SEED, faults=len(KINDS), runs=RUNS, only=KINDS)
    result = storm(real_slurm, faults, runs=RUNS, say=print)
    assert not result.problems
    assert all(len(run.status["attempts"]) > 1 for run in result.runs)
