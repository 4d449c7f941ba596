"""Beats and stacks that a rank writes on its node's disk while it trains or stands still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.judging.stacks import main_thread
from orchestrator.rundir.beat import Beat, beats_folder, local_stack
from orchestrator.rundir.limits import Limits
from orchestrator.runtime.pulse import Pulse, Teller
from orchestrator.runtime.recorder import enqueued

from .runs import environment


@pytest.fixture
def teller(tmp_path: Path) -> Iterator[Callable[..., tuple[Pulse, Teller]]]:
    made: list[Teller] = []

    def make(**limits: Any) -> tuple[Pulse, Teller]:
        env = environment(tmp_path / "run", rank=2, world_size=4)
        pulse = Pulse(env, limits=Limits(**limits))
        made.append(Teller(pulse, env, tmp_path / "local"))
        return pulse, made[-1]

    yield make
    for one in made:
        one._timer.stop()


def written(folder: Path) -> Beat:
    found = Beat.from_text((beats_folder(folder / "local") / "rank-2").read_text())
    assert found is not None
    return found


def test_beats_on_the_nodes_own_disk(tmp_path: Path, teller: Callable[..., Any]) -> None:
    pulse, one = teller()
    one.tell()
    assert written(tmp_path) == pulse.beat
    pulse.step(7)
    with pulse.waiting():
        one.tell()
        assert written(tmp_path) == pulse.beat
        assert (written(tmp_path).step, written(tmp_path).waiting) == (7, True)
    path = beats_folder(tmp_path / "local") / "rank-2"
    assert (path.stat().st_mode & 0o077, path.parent.stat().st_mode & 0o077) == (0o044, 0)


def test_stacks_of_a_rank_that_stands_still_and_gets_on(
    tmp_path: Path, teller: Callable[..., Any]
) -> None:
    pulse, one = teller(min_s=0.05, start_s=0.05)
    one.tell()
    own, shared = (
        local_stack(tmp_path / "local", 2),
        tmp_path / "run" / "attempts" / "1" / "stacks" / "rank-2.txt",
    )
    stand_still(lambda: one.tell() or shared.exists())
    assert own.stat().st_mode & 0o777 == shared.stat().st_mode & 0o777 == 0o600
    assert "stand_still" in [frame.function for frame in main_thread(shared.read_text())]
    before = shared.read_text()
    one.tell()
    assert shared.read_text() == before  # once is enough
    pulse.step(1)
    pulse.limits = Limits()
    pulse.step(2)
    one.tell()
    assert own.read_text() == ""
    assert not shared.exists()


def stand_still(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_stacks_without_limits(tmp_path: Path, teller: Callable[..., Any]) -> None:
    _, one = teller(min_s=1.0, start_s=1.0)
    _, off = teller(enabled=False)
    one.tell()
    off.tell()  # the timer is the process's own, so it is off now
    deadline = time.monotonic() + 1.3
    while time.monotonic() < deadline:
        time.sleep(0.02)
    assert local_stack(tmp_path / "local", 2).read_text() == ""


def test_what_the_flight_recorder_says() -> None:
    status = {
        "0": {"last_enqueued_collective": "12", "last_completed_collective": "11"},
        "1": {"last_enqueued_collective": "-1"},
        "2": {},
    }
    assert enqueued({"pg_status": status, "version": "2.10"}) == {"0": 12}
    assert enqueued({}) == {}
