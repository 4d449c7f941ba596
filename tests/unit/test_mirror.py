"""The copies of the metrics: which lines count, and what a target that fails may do."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.spec.train import MetricsSpec
from orchestrator.trainer.mirror.curve import Curve, Line, numbers, reach
from orchestrator.trainer.mirror.keeper import Keeper
from orchestrator.trainer.mirror.wandb import run_id


def write(path: Path, attempt: int, steps: Iterable[int]) -> None:
    with path.open("a") as file:
        for step in steps:
            file.write(
                json.dumps({"attempt": attempt, "step": step, "loss": attempt / step}) + "\n"
            )


def read(curve: Curve) -> list[tuple[int, int]]:
    found = []
    while (lines := curve.read()) is not None:
        found += [(line["attempt"], line["step"]) for line in lines]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_the_first_attempt_counts_as_it_grows(path: Path) -> None:
    curve = Curve(path, attempt=1, resumed=0)
    assert read(curve) == []
    write(path, 1, [1, 2])
    assert read(curve) == [(1, 1), (1, 2)]
    write(path, 1, [3])
    assert read(curve) == [(1, 3)]


def test_steps_of_lost_attempts_do_not_count(path: Path) -> None:
    write(path, 1, range(1, 9))
    write(path, 2, range(5, 7))  # resumed after 4; lost after that
    write(path, 3, range(5, 8))
    assert read(Curve(path, attempt=4, resumed=7)) == [
        *((1, step) for step in (1, 2, 3, 4)),
        *((3, step) for step in (5, 6, 7)),
    ]


def test_a_fall_back_takes_more_back(path: Path) -> None:
    write(path, 1, range(1, 5))
    write(path, 2, range(5, 9))
    curve = Curve(path, attempt=3, resumed=2)
    write(path, 3, [3, 4])
    assert read(curve) == [(1, 1), (1, 2), (3, 3), (3, 4)]


def test_an_attempt_without_a_line_changes_nothing(path: Path) -> None:
    write(path, 1, range(1, 4))
    assert read(Curve(path, attempt=5, resumed=3)) == [(1, 1), (1, 2), (1, 3)]


def test_half_a_line_is_waited_for_and_rubbish_passed_over(path: Path) -> None:
    write(path, 1, [1])
    with path.open("a") as file:
        file.write('{"attempt": 1, "st\n[3]\n{"attempt": "x", "step": 2}\n{"attempt": 1, "step": 2')
    curve = Curve(path, attempt=1, resumed=0)
    assert read(curve) == [(1, 1)]
    with path.open("a") as file:
        file.write("}\n")
    assert read(curve) == [(1, 2)]


def test_more_lines_than_are_read_at_once(path: Path) -> None:
    write(path, 1, range(1, 1201))
    curve = Curve(path, attempt=1, resumed=0)
    assert [step for _, step in read(curve)] == list(range(1, 1201))


def test_reach_and_numbers() -> None:
    assert reach({}, attempt=1, resumed=0) == {}
    assert reach({1: 1, 3: 9}, attempt=3, resumed=8) == {1: 8}
    line = {"step": 1, "at": 2.0, "loss": None, "ok": True, "samples": [0, 8], "lr": 0.1}
    assert numbers(line) == {"lr": 0.1}


class Target:
    """Takes lines; fails as often as it is told to."""

    name = "the target"

    def __init__(self, *, has: int = 0, fail: Exception | None = None) -> None:
        self.has, self.fail = has, fail
        self.steps: list[int] = []
        self.lines: list[Line] = []
        self.opened = self.flushed = self.closed = 0

    def open(self) -> int:
        self.opened += 1
        if self.fail is not None:
            raise self.fail
        return self.has

    def write(self, line: Line) -> None:
        if self.fail is not None:
            raise self.fail
        self.steps.append(line["step"])
        self.lines.append(line)

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed += 1


class Told:
    """A clock that is set by hand, and what was said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.words: list[str] = []

    def keeper(self, target: Target, path: Path) -> Keeper:
        return Keeper(
            target,
            lambda: Curve(path, attempt=1, resumed=0),
            now=lambda: self.now,
            say=self.words.append,
        )


def test_a_target_gets_what_it_lacks(path: Path) -> None:
    write(path, 1, range(1, 6))
    target = Target(has=3)
    keeper = Told().keeper(target, path)
    keeper.keep()
    keeper.keep()
    write(path, 1, [6])
    keeper.close()
    assert target.steps == [4, 5, 6]
    assert (target.opened, target.flushed, target.closed) == (1, 2, 1)


def test_a_validation_that_was_made_up_for_is_told_at_its_step(path: Path) -> None:
    write(path, 1, [1, 2])
    again = {"attempt": 1, "step": 2, "step_s": 0.0, "eval": {"loss": 2.0}, "again": True}
    with path.open("a") as file:
        file.write(json.dumps(again) + "\n")
    write(path, 1, [3])
    target = Target()
    Told().keeper(target, path).keep()
    assert target.steps == [1, 2, 2, 3]
    assert target.lines[2] == {"step": 2, "eval": {"loss": 2.0}}
    later = Target(has=3)
    Told().keeper(later, path).keep()
    assert later.steps == []


def test_a_target_that_fails_rests_and_then_gets_everything(path: Path) -> None:
    write(path, 1, [1, 2])
    told, target = Told(), Target(fail=OSError(28, "No space left on device"))
    keeper = told.keeper(target, path)
    for _ in range(3):
        keeper.keep()
    assert (target.opened, len(told.words)) == (1, 1)
    assert "the target" in told.words[0]
    assert "No space left" in told.words[0]
    told.now = 301.0
    keeper.keep()
    assert (target.opened, len(told.words)) == (2, 1)  # it is said once
    target.fail, told.now = None, 602.0
    keeper.keep()
    assert target.steps == [1, 2]


def test_one_that_fails_in_the_middle_begins_anew(path: Path) -> None:
    write(path, 1, [1, 2])
    told, target = Told(), Target()
    keeper = told.keeper(target, path)
    keeper.keep()
    target.fail = RuntimeError("gone")
    write(path, 1, [3])
    keeper.keep()
    target.fail, target.has, told.now = None, 2, 400.0
    keeper.close()
    assert target.steps == [1, 2, 3]


def test_a_missing_package_is_not_looked_for_again(path: Path) -> None:
    write(path, 1, [1])
    told, target = Told(), Target(fail=ModuleNotFoundError("No module named 'wandb'"))
    keeper = told.keeper(target, path)
    keeper.keep()
    told.now = 1e6
    keeper.keep()
    keeper.close()
    assert target.opened == 1
    assert "install it" in told.words[0]


def test_a_secret_in_an_error_is_not_repeated(path: Path) -> None:
    told = Told()
    problem = OSError("cannot reach https://alice:hunter2@proxy:3128")
    told.keeper(Target(fail=problem), path).keep()
    assert "hunter2" not in told.words[0]


def test_a_run_keeps_its_id(tmp_path: Path) -> None:
    first = run_id(tmp_path, "llama")
    assert first.startswith("llama-")
    assert run_id(tmp_path, "llama") == first
    other = tmp_path / "other"
    other.mkdir()
    assert run_id(other, "llama") != first


@pytest.mark.parametrize(
    "bad", [{"tensorboard": "yes"}, {"wandb": {}}, {"wandb": {"project": ""}}, {"csv": True}]
)
def test_what_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MetricsSpec.model_validate(bad)


def test_nothing_is_wanted_by_default() -> None:
    assert not MetricsSpec().wanted
    assert MetricsSpec.model_validate({"wandb": {"project": "p"}}).wanted
