"""How long a resume waits for what it cannot read."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import UnreadError
from orchestrator.runtime import Notice, resuming
from orchestrator.runtime.patience import Patience

from .runs import Threads, environment, make_run, refuse, save

PROBLEM = UnreadError("step-2: data cannot be read")


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        fake = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr("orchestrator.runtime.patience.time", fake)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_ends_after_its_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    again = Patience(60.0, hurry=lambda: False)
    while again(PROBLEM):
        pass
    assert clock.now == 1060.0
    assert capsys.readouterr().err.count("data cannot be read. It is looked at again") == 1


def test_without_time_nothing_is_said(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert not Patience(0.0, hurry=lambda: False)(PROBLEM)
    assert capsys.readouterr().err == ""


def test_a_notice_ends_it(clock: Clock) -> None:
    assert not Patience(60.0, hurry=lambda: True)(PROBLEM)
    assert clock.now == 1000.0


@pytest.mark.parametrize("world_size", [1, 3])
def test_what_reads_again_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, world_size: int
) -> None:
    first = make_run(tmp_path)
    save(first, 1)
    path = save(first, 2)
    looked = refuse(
        monkeypatch, "open", path / "data", errno.ESTALE, while_=lambda: clock.now < 1030
    )
    ranks, env = Threads(world_size), environment(tmp_path, attempt=2)
    look = resuming.Look(again=Patience(60.0, hurry=lambda: False))
    found = ranks.run(lambda rank: resuming.choose(ranks, env, look))
    assert [choice.checkpoint.step for choice in found] == [2] * world_size
    assert looked
    assert sorted(p.name for p in path.parent.iterdir()) == ["LATEST", "step-1", "step-2"]


def test_a_run_is_patient_until_a_notice_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    path = save(make_run(tmp_path), 2)
    refuse(monkeypatch, "open", path / "data", errno.ESTALE)
    run = make_run(tmp_path, attempt=2)
    notice = Notice("USR2", 1.0, "signal")
    monkeypatch.setattr(run, "noticed", lambda: notice if clock.now >= 1020 else None)
    with pytest.raises(UnreadError, match="may be sound"):
        run.resume()
    assert clock.now == 1020.0
