"""When to save: the formulas against their papers' own figures, and the bounds around them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.checkpoint.interval import (
    FIRST_S,
    Ended,
    Interval,
    Past,
    choose,
    daly_s,
    estimated_mtbf_s,
    young_s,
)

HOUR = 3600.0


def chosen(**changes: Any) -> Interval:
    plain: dict[str, Any] = {
        "saves_s": [10.0],
        "step_s": 2.0,
        "past": [],
        "running_s": 0.0,
        "prior_s": 4 * HOUR,
        "max_s": HOUR,
        "notice_s": 120.0,
    }
    return choose(**{**plain, **changes})


@pytest.mark.parametrize(("mtbf_min", "best_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_dalys_own_figures(mtbf_min: float, best_min: float) -> None:
    """Figures 3 to 5 of Daly (2006): saves of 5 minutes."""
    assert daly_s(5 * 60, mtbf_min * 60) / 60 == pytest.approx(best_min, rel=0.01)


@pytest.mark.parametrize("mtbf_s", [60.0, 1000.0, 1e6])
@pytest.mark.parametrize("save_s", [0.1, 5.0, 50.0])
def test_dalys_is_the_best_of_the_exact_cost(save_s: float, mtbf_s: float) -> None:
    """Against a search: wall time per useful second is (e^((t + save) / mtbf) - 1) / t."""
    best = daly_s(save_s, mtbf_s)

    def cost(interval_s: float) -> float:
        return math.expm1((interval_s + save_s) / mtbf_s) / interval_s

    least = min(cost(best * 1.01**n) for n in range(-100, 100))
    assert cost(best) <= least * 1.002


def test_a_save_that_takes_longer_than_the_job_lives() -> None:
    assert daly_s(100, 50) == 50
    assert daly_s(100, 10) == 10


def test_young_and_daly_agree_where_saves_are_cheap() -> None:
    assert daly_s(1, 1e6) == pytest.approx(young_s(1, 1e6), rel=0.001)


def test_the_mean_time_starts_as_configured_and_follows_what_is_seen() -> None:
    lost = [Past(100.0, Ended.LOST)] * 99
    saved = [Past(100.0, Ended.SAVED), Past(100.0, Ended.IDLE)]

    def mtbf(past: list[Past], running_s: float = 0.0, notice_saves: bool = True) -> float:
        return estimated_mtbf_s(
            past, running_s=running_s, prior_s=1000.0, notice_saves=notice_saves
        )

    assert mtbf([]) == 1000.0
    assert mtbf([], running_s=5000.0) == 6000.0
    assert mtbf(lost) == (1000 + 9900) / 100
    assert mtbf(saved) == 1200.0
    assert mtbf(saved, notice_saves=False) == 600.0


def test_the_interval_in_steps() -> None:
    found = chosen()
    assert found.seconds == daly_s(10, 4 * HOUR)
    assert found.steps == int(found.seconds / 2)
    assert chosen(saves_s=[9.0, 10.0, 500.0]).seconds == found.seconds


def test_never_less_than_a_step_and_never_more_than_the_maximum() -> None:
    assert chosen(step_s=1e5).steps == 1
    assert chosen(max_s=100.0).steps == 50
    assert chosen(max_s=0.5).steps == 1
    assert chosen(saves_s=[500.0], max_s=100.0).steps == 50
    assert chosen(step_s=0.0).steps == 1


def test_the_first_save_comes_early() -> None:
    first = chosen(saves_s=[])
    assert (first.save_s, first.seconds, first.steps) == (None, FIRST_S, int(FIRST_S / 2))
    assert chosen(saves_s=[], max_s=10.0).seconds == 10.0


@pytest.mark.parametrize(
    ("notice_s", "saves"), [(12.0, True), (11.9, False), (0.0, False), (None, True)]
)
def test_a_notice_that_is_shorter_than_a_save_counts_as_lost_work(
    notice_s: float | None, saves: bool
) -> None:
    """A step may have to end first: 2 s, and 10 s for the save."""
    past = [Past(600.0, Ended.SAVED)] * 50
    found = chosen(notice_s=notice_s, past=past)
    assert found.notice_saves is saves
    assert (found.mtbf_s < 1000) is not saves
    assert ("too late" in found.why) is not saves
    assert chosen(saves_s=[], notice_s=0.0).notice_saves


def test_more_ends_make_it_shorter() -> None:
    calm = chosen(past=[Past(600.0, Ended.SAVED)] * 20)
    rough = chosen(past=[Past(600.0, Ended.LOST)] * 20)
    assert rough.steps < calm.steps
    assert "until a first save" in chosen(saves_s=[]).why


@pytest.mark.parametrize(
    ("whole_s", "max_s", "seconds"), [(51.0, HOUR, 510.0), (900.0, HOUR, HOUR), (51.0, 60.0, 60.0)]
)
def test_saves_in_the_background_are_under_way_for_a_tenth_of_the_time(
    whole_s: float, max_s: float, seconds: float
) -> None:
    """Daly's alone, of 0.1 s blocked, is 54 s; the maximum goes before the pause."""
    assert chosen(saves_s=[0.1], whole_s=whole_s, max_s=max_s).seconds == seconds


def test_a_short_save_in_the_background_is_daly() -> None:
    assert chosen(saves_s=[0.1], whole_s=2.0).seconds == daly_s(0.1, 4 * HOUR)


def test_one_step_is_one() -> None:
    assert "1 step of" in chosen(step_s=1e5).why
    assert "2 steps of" in chosen(step_s=30.0, max_s=60.0).why
