"""Unit tests start no process, unless they say that they do."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.submitting import submission
from orchestrator.watching import watch

from . import recorded_slurm
from .batch_shell import World
from .batch_shell import make as make_world
from .builders import NOW, make_run
from .fake_cluster import Cluster
from .runs import Clock

FOLDER = Path(__file__).parent
# They test what a process of its own does: signals, the death of a parent.
START_PROCESSES = ("test_runtime", "test_checkpoint")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the modules that are about processes."""
    for item in items:
        if FOLDER in item.path.parents and item.path.name.startswith(START_PROCESSES):
            item.add_marker(pytest.mark.processes)


def _refuse(self: subprocess.Popen[Any], args: Any, *_: Any, **__: Any) -> NoReturn:
    raise AssertionError(f"a unit test must not start {args!r}; mark it `processes` if it has to")


@pytest.fixture(autouse=True)
def no_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let subprocess.Popen raise in tests without the marker `processes`."""
    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr(subprocess.Popen, "__init__", _refuse)
        # What was never initialised has nothing to clean up.
        monkeypatch.setattr(subprocess.Popen, "__del__", lambda self: None)


@pytest.fixture(params=["plain", "a b", 'it\'s "$x"; #(& gr\u00fc\u00df'])
def weird_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose name is hard to quote."""
    path = tmp_path / str(request.param)
    path.mkdir()
    return path


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster without jobs in the place of every scheduler; time stands still."""
    made = Cluster()
    monkeypatch.setattr(watch, "scheduler_of", lambda kind, runs: made)
    monkeypatch.setattr(submission, "submit_slurm", made.submit)
    monkeypatch.setattr(time, "time", lambda: NOW)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock in the place of time.monotonic, which stands still until it is moved."""
    return Clock(monkeypatch)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recorded_slurm.Fake:
    """A recorded Slurm on PATH, as seen from an empty folder; single programs can be changed."""
    return recorded_slurm.make(tmp_path, monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run whose job 7 was submitted."""
    layout = make_run(tmp_path / "llama", job_name="llama-1")
    store.append(layout, "submitting")
    store.append(layout, "submitted", job_id="7")
    return layout


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run whose scripts run whole, on a cluster that is a few lines of bash."""
    return make_world(tmp_path, "slurm")
