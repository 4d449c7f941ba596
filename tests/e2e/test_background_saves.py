"""Saves in the background, two ranks with gloo: never torn, never half there, never lost silently.

The program (`tests.tagged`) has a state whose numbers all say which step they are of, so that a
checkpoint is checked by its content.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint import list_checkpoints, newest_complete

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
FOR_EVER = 1_000_000


@dataclass
class Job:
    """A run directory and the processes of its attempts."""

    root: Path
    process: "subprocess.Popen[str] | None" = None

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def start(self, attempt: int, **options: Any) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        plain = [flag.removesuffix("=True") for flag in flags]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tagged", *plain],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                "OMP_NUM_THREADS": "1",
                "FSDPQ_RUN_DIR": str(self.root),
                "FSDPQ_ATTEMPT": str(attempt),
                "FSDPQ_NOTICE_FILE": str(self.root / f"notice-{attempt}"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,
        )

    def wait(self, *, code: int | None = 0) -> str:
        assert self.process is not None
        out, _ = self.process.communicate(timeout=300)
        assert code is None or self.process.returncode == code, out
        until(lambda: not self.processes(), "processes outlived their parent")
        return out

    def processes(self) -> list[int]:
        """Return the ranks and writers of the job that are alive."""
        found = {int(path.name) for path in Path("/proc").glob("[0-9]*") if uses(path, self.root)}
        return sorted(found - {self.process.pid if self.process else 0})

    def writers(self) -> list[int]:
        return [pid for pid in self.processes() if b"trainer.writing" in command(pid)]

    def ranks(self) -> list[int]:
        return [pid for pid in self.processes() if b"tests.tagged" in command(pid).split(b"\0")]

    def steps(self) -> list[int]:
        return sorted(found.step for found in list_checkpoints(self.checkpoints))

    def wait_for(self, saves: int) -> None:
        """Wait until so many saves were published in this run."""
        until(lambda: len(self.saves()) >= saves or self.ended(), "no saves")
        assert not self.ended(), self.wait(code=None)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def saves(self, kind: str = "save") -> list[dict[str, Any]]:
        path = self.root / "saves.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def status(self, attempt: int) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(
            (self.root / f"attempts/{attempt}/status.json").read_text()
        )
        return content


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def uses(process: Path, root: Path) -> bool:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        environment = (process / "environ").read_bytes()
    except OSError:
        return False
    return f"FSDPQ_RUN_DIR={root}\0".encode() in environment and state != "Z"


def until(done: Callable[[], bool], what: str, *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "run")
    made.root.mkdir()
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def check(path: Path) -> int:
    from tests.tagged_state import check as check_numbers

    return check_numbers(path)


def assert_sound(job: Job) -> None:
    """Every published checkpoint is whole, by its hashes and by its content."""
    for found in list_checkpoints(job.checkpoints, verify=True):
        assert found.complete, found
        assert check(found.path) == found.step


# -- never torn ------------------------------------------------------------------------------------


def test_overlapping_saves_are_never_torn(job: Job) -> None:
    job.start(1, steps=60, every=2, keep=100, blocking_every=26, slow_copy_s=0.05)
    job.wait()
    assert job.steps() == list(range(2, 61, 2))
    assert_sound(job)
    blocking = [save["step"] for save in job.saves() if save["blocking"]]
    assert blocking == [26, 52]  # step 60 was on its way
    assert all(save["bytes"] and save["seconds"] > 0 for save in job.saves())
    assert not list(job.checkpoints.glob("*.tmp-*"))


def test_training_does_not_wait_for_a_slow_disk(job: Job) -> None:
    """What comes due while a save is under way is made up for, and the last step is there."""
    job.start(1, steps=60, every=1, keep=100, step_s=0.01, postpone=True)
    job.wait()
    assert job.steps()[-1] == 60
    assert len(job.steps()) < 60
    assert_sound(job)


def test_without_memory_on_one_node_all_wait_for_their_saves(job: Job) -> None:
    job.start(1, steps=10, every=2, keep=100, no_room=True)
    out = job.wait()
    assert "another rank cannot save in the background" in out
    assert job.steps() == [2, 4, 6, 8, 10]
    assert {save["blocking"] for save in job.saves()} == {True}
    assert_sound(job)


def test_a_torn_one_would_be_found(job: Job) -> None:
    """The same with an optimizer that does not wait: the test above can fail."""
    job.start(1, steps=40, every=4, keep=100, slow_copy_s=0.2, step_s=0.02, unguarded=True)
    job.wait()
    with pytest.raises(AssertionError, match="holds"):
        assert_sound(job)


# -- killed at any moment --------------------------------------------------------------------------


def test_everything_killed(job: Job) -> None:
    """Ranks and writers at once, as when the node goes; then the run goes on."""
    job.start(1, steps=FOR_EVER, every=1, numbers=400_000)
    job.wait_for(saves=2)
    time.sleep(random.uniform(0.0, 0.4))  # at another moment of a save each time
    assert job.process is not None
    for pid in [job.process.pid, *job.processes()]:
        os.kill(pid, signal.SIGKILL)
    job.wait(code=None)
    assert_sound(job)
    newest = newest_complete(job.checkpoints, verify=True)
    assert newest is not None
    job.start(2, steps=newest.step + 5, every=1, numbers=400_000)
    job.wait()
    assert job.status(2)["first_step"] == newest.step
    assert_sound(job)
    assert not list(job.checkpoints.glob("*.tmp-*"))  # what attempt 1 left is gone


def test_a_killed_rank_takes_its_writer_with_it(job: Job) -> None:
    job.start(1, steps=FOR_EVER, every=1, numbers=400_000)
    job.wait_for(saves=2)
    os.kill(job.ranks()[-1], signal.SIGKILL)
    job.wait(code=1)
    assert_sound(job)


def test_a_killed_writer_is_told_to_all_ranks(job: Job) -> None:
    job.start(1, steps=FOR_EVER, every=1, numbers=400_000)
    job.wait_for(saves=2)
    os.kill(job.writers()[-1], signal.SIGKILL)
    out = job.wait(code=1)
    assert "ended by SIGKILL" in job.status(1)["reason"], out
    assert len(list((job.root / "attempts/1/errors").iterdir())) == 2  # each rank raised
    assert [line["why"] for line in job.saves("lost")], out
    assert not list(job.checkpoints.glob("*.tmp-*"))
    assert_sound(job)


# -- disks -----------------------------------------------------------------------------------------


def test_a_disk_that_refuses_is_told_to_all_ranks(job: Job) -> None:
    job.start(1, steps=FOR_EVER, every=1, numbers=400_000)
    job.wait_for(saves=1)
    for pid in job.writers()[-1:]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))
    out = job.wait(code=1)
    assert "File too large" in job.status(1)["reason"], out
    assert len(list((job.root / "attempts/1/errors").iterdir())) == 2
    assert not list(job.checkpoints.glob("*.tmp-*"))
    assert_sound(job)


def test_a_writer_that_hangs_is_given_up(job: Job) -> None:
    job.start(1, steps=FOR_EVER, every=20, step_s=0.01, timeout_s=3)
    job.wait_for(saves=1)
    os.kill(job.writers()[0], signal.SIGSTOP)
    out = job.wait(code=1)
    assert "did not answer within 3 s" in job.status(1)["reason"], out
    assert_sound(job)


# -- a notice --------------------------------------------------------------------------------------


def test_a_notice_lets_the_save_under_way_finish(job: Job) -> None:
    (job.root / "plan.json").write_text('{"notice_s": 600}')
    job.start(1, steps=FOR_EVER, every=10, keep=1000, slow_copy_s=0.3, step_s=0.01)
    job.wait_for(saves=2)
    (job.root / "notice-1").write_text("USR2\n")
    job.wait()
    status = job.status(1)
    assert (status["outcome"], status["saved_step"]) == ("stopped", status["step"])
    assert job.steps()[-1] == status["step"]
    assert job.saves()[-1]["reason"] == "notice"
    assert not job.saves("lost")
    assert_sound(job)


def test_a_notice_without_time_abandons_it(job: Job) -> None:
    """Ten seconds are left, a save takes one, and the one under way does not move."""
    (job.root / "plan.json").write_text('{"notice_s": 10}')
    cost = {"kind": "save", "attempt": 0, "step": 0}
    past = [
        {**cost, "blocked_s": 1, "seconds": 1, "blocking": True},
        *[{**cost, "blocked_s": 1, "seconds": 500, "blocking": False}] * 19,
    ]
    job.start(1, steps=FOR_EVER, every=10, keep=1000, step_s=0.01, postpone=True)
    job.wait_for(saves=2)
    for pid in job.writers():
        os.kill(pid, signal.SIGSTOP)
    until(lambda: bool(list(job.checkpoints.glob("*.tmp-1"))), "no save is under way")
    stuck = list(job.checkpoints.glob("*.tmp-1"))
    with (job.root / "saves.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in past)
    (job.root / "notice-1").write_text("USR2\n")
    out = job.wait()
    status = job.status(1)
    assert (status["outcome"], status["saved_step"]) == ("stopped", status["step"]), out
    assert job.steps()[-1] == status["step"]
    (lost,) = job.saves("lost")
    assert [path.name for path in stuck] == [f"step-{lost['step']}.tmp-1"]
    assert lost["step"] not in job.steps()
    assert not list(job.checkpoints.glob("*.tmp-*"))
    assert_sound(job)
