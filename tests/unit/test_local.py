"""This machine as a scheduler: what counts as a run's process, and what does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ActionError
from orchestrator.local.scheduler import LocalScheduler, job_id_of
from orchestrator.rundir.layout import RunLayout
from orchestrator.scheduler import Answer, JobState

from .builders import make_run
from .polling import until

pytestmark = pytest.mark.processes
Start = Callable[..., subprocess.Popen[bytes]]
# `wait` and not a sleep in the foreground, so that a signal is heard at once.
STAY = 'trap \'echo heard >>"$0.heard"; exit 0\' USR2\nsleep 60 & touch "$0.ready"; wait\n'


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    layout = make_run(tmp_path / "it's $a; b" / "llama")
    for script in (layout.script, layout.node_script):
        script.write_text(STAY)
    (layout.submitit / "job-id").write_text("4242\n")
    return layout


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that is ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str | Path) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, start_new_session=True))
        ready = Path(f"{argv[-1]}.ready") if argv[0] == "bash" else Path("/")
        while not ready.exists():
            time.sleep(0.01)
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(run: RunLayout) -> Answer:
    return LocalScheduler({"llama-1": run}).jobs(["llama-1", "unknown"])


def test_a_run_that_was_never_started(run: RunLayout) -> None:
    (run.submitit / "job-id").unlink()
    assert ask(run) == Answer(())
    assert job_id_of(run) is None


def test_a_run_that_runs(run: RunLayout, start: Start) -> None:
    start("bash", run.script)
    (record,) = ask(run).records
    assert (record.job_id, record.name, record.state) == ("4242", "llama-1", JobState.RUNNING)
    assert record.in_queue
    assert record.nodes == os.uname().nodename


def test_a_run_that_was_started_by_hand(run: RunLayout, start: Start) -> None:
    (run.submitit / "job-id").unlink()
    start("bash", run.script)
    (record,) = ask(run).records
    assert (record.job_id, record.state) == ("by hand", JobState.RUNNING)


def test_a_run_that_ended(run: RunLayout) -> None:
    folder = run.attempt(1)
    folder.root.mkdir()
    folder.exit.write_text('{"code": 3}')
    (record,) = ask(run).records
    assert (record.state, record.in_queue, record.exit_code) == (JobState.FAILED, False, 3)


@pytest.mark.parametrize("torn", ["", "{", '{"code": null}', '{"code": "x"}'])
def test_an_end_that_was_not_written_down(run: RunLayout, torn: str) -> None:
    folder = run.attempt(1)
    folder.root.mkdir()
    folder.exit.write_text(torn)
    assert ask(run).records[0].exit_code is None


def test_who_reads_the_script_is_not_the_run(run: RunLayout, start: Start) -> None:
    start("tail", "-f", run.script)
    assert ask(run).records[0].state is JobState.FAILED


def test_another_run_with_a_similar_name_is_not_this_one(run: RunLayout, start: Start) -> None:
    other = make_run(run.root.parent / "llama2")
    other.script.write_text(STAY)
    start("bash", other.script)
    assert ask(run).records[0].state is JobState.FAILED


def test_a_notice_goes_to_the_batch_shell(run: RunLayout, start: Start) -> None:
    batch, node = start("bash", run.script), start("bash", run.node_script)
    scheduler = LocalScheduler({"llama-1": run})
    scheduler.notify("another", signal="USR2")
    assert batch.poll() is None
    scheduler.notify("4242", signal="USR2")
    assert batch.wait(10) == 0
    assert Path(f"{run.script}.heard").read_text() == "heard\n"
    assert node.poll() is None


def test_cancelling_kills_all_of_it(run: RunLayout, start: Start) -> None:
    mine = [start("bash", run.script), start("bash", run.node_script)]
    mine.append(start(sys.executable, "-c", "import time; time.sleep(60)", run.train))
    reader = start("tail", "-f", run.script)
    LocalScheduler({"llama-1": run}).cancel("4242")
    assert [process.wait(10) for process in mine] == [-signal.SIGKILL] * 3
    assert reader.poll() is None
    LocalScheduler({"llama-1": run}).cancel("4242")


def test_a_process_cannot_be_requeued_and_never_waits(run: RunLayout) -> None:
    scheduler = LocalScheduler({"llama-1": run})
    scheduler.start_now("4242")
    with pytest.raises(ActionError, match="cannot be requeued"):
        scheduler.requeue("4242")


def test_a_worker_that_names_none_of_the_runs_files_is_its_process(
    run: RunLayout, tmp_path: Path
) -> None:
    """As the worker of a plain script whose torchrun is gone."""
    environment = {**os.environ, "FSDPQ_RUN_DIR": str(run.root)}
    worker = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    # The kernel closes the pipe that Popen waits on before it says what the environment is.
    told = Path(f"/proc/{worker.pid}/environ")
    until(lambda: b"FSDPQ_RUN_DIR=" in told.read_bytes(), "an environment", within_s=30)
    scheduler = LocalScheduler({"llama-1": run})
    (record,) = scheduler.jobs(["llama-1"]).records
    assert record.state is JobState.RUNNING
    scheduler.cancel("4242")
    assert worker.wait(timeout=10) == -signal.SIGKILL
