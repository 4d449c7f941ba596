"""What a script logs by way of its run, and what counts as time of a step."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runtime import Run
from orchestrator.runtime.stepclock import StepClock
from tests.unit.runs import make_run


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.env.run.metrics.read_text().splitlines()]


class Tensor:
    """Like a tensor of one element."""

    def item(self) -> float:
        return 2.5


def test_a_line_says_what_was_logged(tmp_path: Path) -> None:
    run = make_run(tmp_path, attempt=3)
    run.resume()
    run.log(7, loss=Tensor(), grad_norm=float("nan"), note="warm")
    (line,) = lines(run)
    assert (line["attempt"], line["step"], line["world_size"]) == (3, 7, 1)
    assert (line["loss"], line["grad_norm"], line["note"]) == (2.5, None, "warm")
    assert line["step_s"] >= 0
    assert line["at"] > 1e9


def test_own_step_time_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.log(1, loss=1.0)  # nothing was measured: there was no resume
    run.log(2, loss=1.0, step_s=0.25)
    assert ["step_s" in line for line in lines(run)] == [False, True]
    assert lines(run)[1]["step_s"] == 0.25


def test_half_a_line_of_a_killed_attempt_is_closed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.env.run.metrics.write_text('{"attempt": 1, "st')
    run.log(1, loss=1.0)
    first, second = run.env.run.metrics.read_text().splitlines()
    assert first == '{"attempt": 1, "st'
    assert json.loads(second)["step"] == 1


def test_a_disk_that_does_not_take_it_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    run.env.run.metrics.mkdir()
    run.log(1, loss=1.0)
    run.log(2, loss=1.0)
    assert capsys.readouterr().err.count("the metrics are not written") == 1


def test_what_json_does_not_know_is_the_scripts_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        make_run(tmp_path).log(1, loss=object())


def test_votes_and_saves_are_no_part_of_a_step() -> None:
    now = 0.0
    clock = StepClock(lambda: now)
    assert clock.take() is None
    clock.restart()
    now = 2.0
    clock.halt()
    now = 10.0  # a save
    clock.halt()
    clock.go()
    now = 11.0
    assert clock.take() == 3.0
    now = 15.0
    assert clock.take() == 4.0
