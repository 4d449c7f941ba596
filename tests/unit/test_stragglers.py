"""Which rank slows the others down."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.judging.stragglers import straggler
from orchestrator.rundir.attempt import Straggler
from orchestrator.rundir.node_report import Gpu, RankReport

from .builders import NOW, node_report, rank_report


def rank(number: int, wait_s: float | None, **changes: Any) -> RankReport:
    return rank_report(number, step_s=1.0, wait_s=wait_s, **changes)


def find(*ranks: RankReport, at: float = NOW) -> Straggler | None:
    return straggler([node_report(*ranks[:2]), node_report(*ranks[2:], node="n2", at=at)], now=NOW)


def test_the_one_that_never_waits() -> None:
    found = find(rank(0, 0.4), rank(1, 0.38), rank(2, 0.01), rank(3, 0.41))
    assert found is not None
    assert (found.rank, found.node) == (2, "n2")
    assert found.share == pytest.approx(0.39)
    assert found.why == (
        "rank 2 on n2 is the slowest: the others wait 0.39 s of each step of 1.00 s for it (39%)"
    )


@pytest.mark.parametrize(
    "waits",
    [
        (0.05, 0.06, 0.02, 0.05),  # as ranks are
        (0.5, 0.5, 0.5, 0.5),
        (0.01, 0.01, 0.01, 0.9),  # one is fast; that costs nothing
        (None, 0.4, 0.4, 0.4),
    ],
)
def test_none(waits: tuple[float | None, ...]) -> None:
    assert find(*(rank(n, wait_s) for n, wait_s in enumerate(waits))) is None


def test_a_tenth_of_nothing_is_nothing() -> None:
    quick = [rank_report(n, step_s=0.001, wait_s=0.0009 * (n != 1)) for n in range(4)]
    assert find(*quick) is None


def test_not_while_something_else_is_done_or_unknown() -> None:
    ranks = [rank(0, 0.4), rank(1, 0.4), rank(2, 0.0), rank(3, 0.4)]
    assert find(*ranks) is not None
    assert find(*ranks[:3], rank(3, 0.4, phase="saving")) is None
    assert find(*ranks, at=NOW - 9999) is None
    assert find(ranks[2]) is None
    assert find() is None


def test_its_clock_is_named_too() -> None:
    cold, hot = Gpu(sm_mhz=1755, celsius=50), Gpu(sm_mhz=1200, celsius=88, slowed=("thermal",))
    found = find(*(rank(n, 0.4 * (n != 3), gpu=hot if n == 3 else cold) for n in range(4)))
    assert found is not None
    assert found.why.endswith(
        "; its GPU at 1200 MHz, the others at 1755 MHz, 88 C, slowed: thermal"
    )


def test_a_gpu_that_is_slowed_down_where_the_vote_tells_nothing() -> None:
    cold, hot = Gpu(sm_mhz=1755, celsius=50), Gpu(sm_mhz=1200, celsius=88, slowed=("thermal",))
    found = find(*(rank(n, 0.0, gpu=hot if n == 1 else cold) for n in range(4)))
    assert found is not None
    assert (found.rank, found.node, round(found.share, 2)) == (1, "n1", 0.32)
    assert found.why.startswith("rank 1 on n1 runs on a slow GPU; its GPU at 1200 MHz")


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu(sm_mhz=1200, celsius=60),  # it has less to do
        Gpu(sm_mhz=1750, celsius=88, slowed=("thermal",)),  # a little
        Gpu(sm_mhz=None, celsius=None, slowed=("thermal",)),
    ],
)
def test_a_gpu_that_proves_nothing(gpu: Gpu) -> None:
    cold = Gpu(sm_mhz=1755, celsius=50)
    assert find(*(rank(n, 0.0, gpu=gpu if n == 1 else cold) for n in range(4))) is None
