from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.errors import RunError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import logs

from .builders import make_run


@pytest.fixture
def run(weird_path: Path) -> RunLayout:
    """Two attempts on two nodes with two workers each, as torchrun leaves them."""
    layout = make_run(weird_path / "llama")
    layout.output.write_text("batch\n")
    for attempt in (1, 2):
        for node in (0, 1):
            for local in (0, 1):
                folder = layout.attempt(attempt).logs / f"node-{node}/none_x/attempt_0/{local}"
                folder.mkdir(parents=True)
                rank = node * 2 + local
                (folder / "stdout.log").write_text(f"a{attempt} r{rank} out\n")
                (folder / "stderr.log").write_text(f"a{attempt} r{rank} err\n")
    return layout


def text(run: RunLayout, *, attempt: int | None = None, rank: int | None = None) -> str:
    paths = logs.files(run, attempt=attempt, rank=rank, nproc_per_node=2)
    return "".join(logs.read(paths, following=False, over=lambda: True))


def test_the_whole_job(run: RunLayout) -> None:
    assert text(run) == "batch\n"


def test_the_whole_job_before_it_wrote_anything(run: RunLayout) -> None:
    run.output.unlink()
    assert text(run) == ""


def test_a_rank_of_the_newest_attempt(run: RunLayout) -> None:
    assert text(run, rank=3) == "a2 r3 err\na2 r3 out\n"
    assert text(run, rank=0) == "a2 r0 err\na2 r0 out\n"


def test_a_rank_of_an_attempt(run: RunLayout) -> None:
    assert text(run, attempt=1, rank=2) == "a1 r2 err\na1 r2 out\n"


def test_an_attempt(run: RunLayout) -> None:
    found = text(run, attempt=1)
    assert found.count("a1 ") == 8
    assert "a2 " not in found


def test_attempts_are_compared_as_numbers(run: RunLayout) -> None:
    (run.attempt(10).logs).mkdir(parents=True)
    with pytest.raises(RunError, match="attempt 10 has not left a log of rank 0"):
        text(run, rank=0)


@pytest.mark.parametrize(
    ("attempt", "rank", "words"),
    [
        (3, None, "there is no attempt 3"),
        (3, 0, "there is no attempt 3"),
        (1, 4, "attempt 1 has not left a log of rank 4"),
        (None, 99, "attempt 2 has not left a log of rank 99"),
    ],
)
def test_what_is_not_there(
    run: RunLayout, attempt: int | None, rank: int | None, words: str
) -> None:
    with pytest.raises(RunError, match=words):
        text(run, attempt=attempt, rank=rank)


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no attempt has started yet"):
        text(make_run(tmp_path / "llama"), rank=0)


def test_following_goes_on_until_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    pieces = iter([b"a\xc3", b"\xa9b", b"", b"c\xff\n"])
    over = iter([False, False, False, True])

    def tick(_: float) -> None:
        with path.open("ab") as file:
            file.write(next(pieces))

    monkeypatch.setattr(time, "sleep", tick)
    tick(0)
    found = "".join(logs.read([path], following=True, over=lambda: next(over)))
    assert found == "a\u00e9bc\ufffd\n"
