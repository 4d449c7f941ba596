from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.schedule import HANGS, KINDS, schedule
from tests.chaos.weather import WEATHER


def test_a_seed_says_everything() -> None:
    assert schedule(7, faults=50, runs=3) == schedule(7, faults=50, runs=3)
    assert schedule(7, faults=50, runs=3) != schedule(8, faults=50, runs=3)


@pytest.mark.parametrize("hang", [False, True])
def test_every_kind_is_there_in_a_long_one(hang: bool) -> None:
    kinds = {**KINDS, **HANGS} if hang else KINDS
    for seed in range(20):
        found = {fault.kind for fault in schedule(seed, faults=len(kinds), runs=3, hang=hang)}
        assert found == set(kinds)


def test_each_run_gets_its_share() -> None:
    own = [f for f in schedule(1, faults=60, runs=3) if not f.traits.weather]
    counts = Counter(fault.run for fault in own)
    assert set(counts) == {0, 1, 2}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_drawn_within_what_the_kind_allows() -> None:
    for fault in schedule(1, faults=200, runs=2):
        least, most = fault.traits.seconds
        assert fault.moment in fault.traits.moments
        assert fault.way in fault.traits.ways
        assert least <= fault.seconds <= most


def test_fewer_faults_than_kinds_are_all_different() -> None:
    assert len({fault.kind for fault in schedule(1, faults=6, runs=2)}) == 6


def test_only_some_kinds() -> None:
    assert {f.kind for f in schedule(1, faults=9, runs=1, only=["signal"])} == {"signal"}
    with pytest.raises(ValueError, match="no such kinds"):
        schedule(1, faults=9, runs=1, only=["flood"])


def test_every_kind_can_be_done() -> None:
    assert set(FAULTS) | set(WEATHER) == set(KINDS) | set(HANGS)
    assert set(WEATHER) == {name for name, kind in KINDS.items() if kind.weather}
