"""What a rank says of how far it is: its phase, its limit, its step, and that it waits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.limits import Limits
from orchestrator.runtime import Run
from orchestrator.runtime.notices import NoticeBoard
from orchestrator.runtime.pulse import Pulse

from .runs import Clock, Threads, environment

LIMITS = Limits(min_s=300, factor=5, start_s=1200, save_s=900, max_s=3600)


def make_run(root: Path, limits: Limits = LIMITS, **changes: Any) -> tuple[Run, Pulse]:
    env = environment(root, **changes)
    pulse = Pulse(env, limits=limits)
    board = NoticeBoard(signals=(), file=env.notice_file, under_torchrun=False)
    return Run(env, board, pulse=pulse), pulse


def steps(run: Run, clock: Clock, count: int, *, step_s: float = 2.0) -> None:
    for _ in range(count):
        clock.now += step_s
        run.heartbeat(run.step + 1)
        run.should_stop()


def test_the_start(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.step) == ("starting", 1200, 0)
    clock.now += 50
    run.resume()
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.moved) == ("starting", 1200, 1050)


def test_steps(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    run.resume()
    steps(run, clock, 1)
    assert (pulse.beat.phase, pulse.beat.limit_s) == ("training", 1200)  # the next may compile
    steps(run, clock, 5)
    beat = pulse.beat
    assert (beat.step, beat.limit_s, beat.step_s, beat.wait_s) == (6, 300, 2.0, 0.0)
    assert beat.moved == clock.now
    steps(run, clock, 20, step_s=100.0)
    assert pulse.beat.limit_s == 500


def test_a_vote_is_progress_where_a_script_tells_no_steps(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    clock.now += 1000
    run.should_stop()
    assert (pulse.beat.phase, pulse.beat.moved, pulse.beat.wait_s) == ("starting", 2000, None)


def test_a_save_has_a_limit_of_its_own_and_is_no_part_of_a_step(
    tmp_path: Path, clock: Clock
) -> None:
    run, pulse = make_run(tmp_path)
    run.resume()
    steps(run, clock, 5)
    with run.checkpoint(5) as folder:
        assert (pulse.beat.phase, pulse.beat.limit_s) == ("saving", 900)
        (folder / "data").write_text("x")
        clock.now += 400
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.moved) == ("training", 300, clock.now)
    steps(run, clock, 1)
    assert pulse.beat.step_s == 2.0
    with run.checkpoint(6) as folder:
        assert pulse.beat.limit_s == 2000  # the last one took 400 s and went well
        (folder / "data").write_text("x")


def test_a_save_that_failed_is_no_measure(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)

    def fail() -> None:
        with run.busy("evaluating"):
            clock.now += 400
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert pulse.beat.phase == "starting"
    with run.busy("evaluating"):
        assert pulse.beat.limit_s == 900


def test_work_of_the_scripts_own(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    with run.busy("evaluating", limit_s=7000):
        assert (pulse.beat.phase, pulse.beat.limit_s) == ("evaluating", 7000)


def test_limits_that_are_off(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path, Limits(enabled=False))
    run.resume()
    steps(run, clock, 5)
    with run.busy("evaluating", limit_s=5):
        assert pulse.beat.limit_s is None
    assert pulse.beat.limit_s is None
    assert pulse.beat.step_s == 2.0


def test_the_end(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    run.finished(step=3)
    assert (pulse.beat.phase, pulse.beat.limit_s) == ("ending", 300)


def test_a_rank_says_when_it_waits(tmp_path: Path) -> None:
    ranks = Threads(2)
    seen: list[bool] = []
    made = [environment(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    pulses = [Pulse(env, limits=LIMITS) for env in made]
    board = NoticeBoard(signals=(), file=None, under_torchrun=False)

    def vote(rank: int) -> None:
        if rank == 1:  # only once rank 0 waits
            deadline = time.monotonic() + 20
            while not pulses[0].beat.waiting and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append(pulses[0].beat.waiting)
        Run(made[rank], board, ranks=ranks, pulse=pulses[rank]).should_stop()

    assert ranks.run(vote) == [None, None]
    assert seen == [True]
    assert not any(pulse.beat.waiting for pulse in pulses)


def test_rank_0_says_it_on_the_shared_disk_too(tmp_path: Path, clock: Clock) -> None:
    run, _ = make_run(tmp_path)

    def told() -> Any:
        return json.loads(run.env.files.progress.read_text())

    run.resume()
    assert (told()["phase"], told()["limit_s"], "step" in told()) == ("starting", 1200, False)
    steps(run, clock, 5)
    assert (told()["phase"], told()["limit_s"], told()["step"]) == ("training", 300, 5)
    with run.busy("evaluating"):
        assert (told()["phase"], told()["limit_s"]) == ("evaluating", 900)
    assert told()["phase"] == "training"


def test_other_ranks_do_not(tmp_path: Path, clock: Clock) -> None:
    run, _ = make_run(tmp_path, rank=1, world_size=2)
    with run.busy("evaluating"):
        run.heartbeat(1)
    assert not run.env.files.progress.exists()
