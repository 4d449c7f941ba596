"""`fsdpq sites detect --node` that is ended: its job is cancelled, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .polling import until
from .recorded_slurm import REPOSITORY, Fake, own, wait_for

pytestmark = pytest.mark.processes
# A scancel that says that it has begun, and ends once it may.
SLOW_SCANCEL = """echo "$*" >>scancel.began
while [ ! -e go ]; do read -rt 0.05 <><(:) || :; done
echo "$*" >>scancel.args"""
Ended = subprocess.Popen[str]


@pytest.fixture
def probing(slurm: Fake) -> Iterator[Ended]:
    """fsdpq at the moment when its job waits for a node."""
    slurm("srun", '[ "$1" = --help ] && exit 0; echo $$ >srun.pid; exec sleep 1000')
    slurm("scancel", 'echo "$*" >>scancel.args')
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "sites", "detect", "--node"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(Path("srun.pid"))
    yield process
    process.kill()
    process.communicate()
    end(srun())


def srun() -> int:
    return int(Path("srun.pid").read_text())


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> None:
    """See that it has ended; whoever reaps it then may take a moment."""
    until(lambda: not Path(f"/proc/{pid}").exists(), "srun goes on", within_s=60)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_the_job(probing: Ended, number: int, code: int) -> None:
    probing.send_signal(number)
    _, said = probing.communicate(timeout=60)
    assert probing.returncode == code
    assert "interrupted; no profile was written" in said
    assert Path("scancel.args").read_text().startswith("--name=fsdpq-detect-")
    gone(srun())
    assert not own().exists()


def test_a_second_ctrl_c_does_not_stop_the_cancelling(slurm: Fake, probing: Ended) -> None:
    slurm("scancel", SLOW_SCANCEL)
    probing.send_signal(signal.SIGINT)
    wait_for(Path("scancel.began"))
    # The job is cancelled before anybody waits for srun.
    assert Path(f"/proc/{srun()}").exists()
    probing.send_signal(signal.SIGINT)
    probing.send_signal(signal.SIGTERM)
    Path("go").touch()
    probing.communicate(timeout=60)
    assert probing.returncode == 130
    assert Path("scancel.args").read_text().startswith("--name=fsdpq-detect-")
    gone(srun())


def test_kill_9_leaves_a_guard_that_cancels(probing: Ended) -> None:
    probing.kill()
    wait_for(Path("scancel.args"))
    assert Path("scancel.args").read_text().startswith("--name=fsdpq-detect-")
