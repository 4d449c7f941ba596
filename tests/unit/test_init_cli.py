"""`fsdpq init` when it is ended, when several run at once, and when an option is wrong."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import init
from orchestrator.profile import load_profile
from orchestrator.spec.job import load_job

from .recorded_slurm import REPOSITORY, Fake, fsdpq, own

pytestmark = pytest.mark.processes
ENV = {"PYTHONPATH": str(REPOSITORY)}


def argv(*args: str) -> list[str]:
    return [sys.executable, "-m", "orchestrator", "init", *args]


@dataclass(frozen=True)
class Asked:
    """`fsdpq init` on a terminal."""

    process: subprocess.Popen[bytes]
    terminal: int

    def read_until(self, words: str, *, nudge: Callable[[], None] = lambda: None) -> None:
        """Read until ``words`` come; ``nudge`` is done again while nothing does."""
        said, deadline = "", time.monotonic() + 120
        while words not in said:
            assert time.monotonic() < deadline, f"{words!r} does not come: {said}"
            if not select.select([self.terminal], [], [], 10)[0]:
                nudge()
                continue
            said += os.read(self.terminal, 4096).decode()


@pytest.fixture
def asked(slurm: Fake) -> Iterator[Asked]:
    """`fsdpq init` at its first question."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        argv(), stdin=its, stderr=its, stdout=its, env={**os.environ, **ENV}, start_new_session=True
    )
    os.close(its)
    found = Asked(process, ours)
    try:
        found.read_until("Training script")
        yield found
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_ctrl_c_at_a_question(asked: Asked, number: int, code: int) -> None:
    def send() -> None:
        # One that comes just before the reading begins is noticed with the next one only.
        asked.process.send_signal(number)

    send()
    asked.read_until("interrupted; nothing was written", nudge=send)
    assert asked.process.wait(60) == code
    assert list(Path().iterdir()) == []
    assert not own().exists()


def test_nobody_to_answer_leaves_nothing(slurm: Fake) -> None:
    done = fsdpq("init", input="")
    assert done.exit_code == 2
    assert "nothing was written" in done.stderr
    assert not own().exists()


def test_several_at_once(slurm: Fake) -> None:
    """In the same new folder, and with the same new profile."""
    started = [
        subprocess.Popen(
            argv("run", "--yes"),
            env={**os.environ, **ENV},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=120) for process in started]
    late = [err for process, (_, err) in zip(started, said, strict=True) if process.returncode != 0]
    # Who comes when all is done is told so, as ever.
    assert all("job.yaml: is there already" in err for err in late), said
    assert len(late) < len(started)
    assert [path.name for path in Path("run").iterdir()] == ["job.yaml"]
    assert [path.name for path in own().iterdir()] == ["fsdpq.yaml"]
    assert load_job(Path("run/job.yaml")).site == "fsdpq"
    assert load_profile("fsdpq", base=Path(), own=own()).default_partition == "spot"


def test_another_was_faster(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look at the files and its own writing."""
    answers = init._answers

    def late(*args: object) -> object:
        found = answers(*args)  # type: ignore[arg-type]
        monkeypatch.setattr(init, "_answers", answers)
        first = fsdpq("init", "--yes")
        assert first.exit_code == 0, first.output
        return found

    monkeypatch.setattr(init, "_answers", late)
    done = fsdpq("init", "--yes")
    assert done.exit_code == 0, done.output
    assert "fsdpq.yaml is there already, and is used" in done.stderr


def test_another_content_stays(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = init._answers

    def late(*args: object) -> object:
        Path("job.yaml").write_text("mine")
        return answers(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(init, "_answers", late)
    done = fsdpq("init", "--yes")
    assert done.exit_code == 1
    assert "job.yaml: is there already" in done.stderr
    assert Path("job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--account", "a'b$(id)"], '--account: "a\'b$(id)" contains'),
        (["--account", "a\nb"], "--account: 'a\\nb' contains the control character"),
        (["--partition", "$P"], "--partition: '$P' contains '$'"),
        (["--partition", "nosuch"], "--partition: fsdpq has no partition nosuch; there are spot, "),
        (["--site", "local", "--partition", "x"], "--partition: the site local has no Slurm"),
        (["--site", "local", "--account", "x"], "--account: the site local has no Slurm"),
        (["--name", "a b"], "--name: 'a b' use 1 to 64 letters"),
    ],
)
def test_wrong_options(slurm: Fake, args: list[str], words: str) -> None:
    done = fsdpq("init", "--yes", *args)
    assert done.exit_code == 1
    assert words in done.stderr
    assert ".new" not in done.stderr
    assert list(Path().iterdir()) == []


def test_a_partition_that_the_profile_leaves_out(slurm: Fake) -> None:
    """Slurm has it: the user may know better."""
    assert fsdpq("init", "--yes", "--partition", "closed").exit_code == 0
    assert load_job(Path("job.yaml")).partition == "closed"


def test_the_question_for_nodes_is_plain(slurm: Fake) -> None:
    done = fsdpq("init", input="own\n2\nresearch\n")
    assert "How many nodes should the job have (1 to 4) [2]: " in done.stderr


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_asked(
    slurm: Fake, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = fsdpq("init", tmp_path / "file" / "x", input="own\n2\nresearch\n")
    assert done.exit_code == 1
    assert f"cannot be written: {tmp_path / 'file'} is no folder" in done.stderr
    assert "Training script" not in done.stderr
    assert not own().exists()
