"""Figures of a sweep, who meets whom, and who is slow."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from orchestrator import report
from orchestrator.bandwidth import (
    Measurement,
    Pair,
    Record,
    algorithm_gbs,
    bus_gbs,
    chosen_rounds,
    find,
    rounds,
)
from orchestrator.bandwidth.finding import why_slow
from orchestrator.report.bandwidth import lines

MIB = 1 << 20


def reduced(gbs: float, size: int = 64 * MIB) -> Measurement:
    return Measurement(
        collective="all_reduce", size=size, seconds=0.01, algorithm_gbs=gbs / 1.5, bus_gbs=gbs
    )


def record(pairs: dict[tuple[str, str], float] | None = None, **changes: Any) -> Record:
    """A sweep over the nodes of ``pairs``."""
    found = tuple(Pair(a=a, b=b, bus_gbs=gbs) for (a, b), gbs in (pairs or {}).items())
    names = sorted({name for pair in found for name in (pair.a, pair.b)})
    usual: dict[str, Any] = {
        "at": 1.5,
        "backend": "nccl",
        "device": "NVIDIA H200",
        "torch": "2.11.0",
        "nccl": "2.28.9",
        "nodes": tuple(names),
        "ranks": 8 * len(names),
        "measurements": (reduced(380.0),),
        "pairs": found,
        "pair_size": 64 * MIB,
        "complete": True,
    }
    return Record(**{**usual, **changes})


def all_pairs(nodes: int, *, slow: dict[str, float], usual: float = 400.0) -> Record:
    """All pairs of n1, n2, ...; a pair is as fast as the slower of its nodes."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    speed = {name: slow.get(name, usual) for name in names}
    return record({(a, b): min(speed[a], speed[b]) for a, b in combinations(names, 2)})


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 16, 1.875),
        ("all_gather", 16, 0.9375),
        ("reduce_scatter", 4, 0.75),
    ],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(
    collective: str, ranks: int, factor: float
) -> None:
    assert algorithm_gbs(2_000_000_000, 0.5) == 4.0
    assert bus_gbs(collective, 2_000_000_000, 0.5, ranks=ranks) == 4.0 * factor


# --- tournament -------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 17, 64])
def test_each_meets_each_once_and_nobody_two_at_a_time(nodes: int) -> None:
    played = rounds(nodes)
    assert len(played) == nodes - 1 + nodes % 2
    assert sorted(pair for pairs in played for pair in pairs) == list(combinations(range(nodes), 2))
    for pairs in played:
        met = [node for pair in pairs for node in pair]
        assert len(set(met)) == len(met) == nodes - nodes % 2


@pytest.mark.parametrize("nodes", [0, 1])
def test_nobody_to_meet(nodes: int) -> None:
    assert rounds(nodes) == ()
    assert chosen_rounds(nodes, most=4) == ()


def test_few_nodes_play_all_rounds() -> None:
    assert chosen_rounds(8, most=16) == rounds(8)


@pytest.mark.parametrize("nodes", [100, 101, 5000])
def test_of_many_nodes_each_meets_a_few(nodes: int) -> None:
    played = chosen_rounds(nodes, most=16)
    assert len(played) == 16
    times = Counter(node for pairs in played for pair in pairs for node in pair)
    assert set(times) == set(range(nodes))
    assert min(times.values()) >= 15
    assert len({pair for pairs in played for pair in pairs}) == sum(map(len, played))


# --- who is slow ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
def test_a_slow_node_is_named_and_none_of_its_pairs(nodes: int) -> None:
    found = find(all_pairs(nodes, slow={"n2": 200.0}))
    assert found.nodes == {"n2": 200.0}
    assert found.pairs == ()
    assert found.reference_gbs == 400.0
    assert not found.ok


def test_two_slow_nodes_of_five_are_named_in_their_order() -> None:
    found = find(all_pairs(5, slow={"n4": 100.0, "n1": 200.0}))
    assert list(found.nodes.items()) == [("n1", 200.0), ("n4", 100.0)]


def test_a_pair_is_named_where_both_of_its_nodes_are_well() -> None:
    pairs = {(a, b): 400.0 for a, b in combinations(["n1", "n2", "n3", "n4"], 2)}
    found = find(record(pairs | {("n1", "n3"): 90.0}))
    assert found.nodes == {}
    assert found.pairs == (Pair(a="n1", b="n3", bus_gbs=90.0),)


def test_of_two_nodes_none_can_be_named() -> None:
    assert find(record({("n1", "n2"): 1.0})).ok


def test_one_partner_alone_names_nobody() -> None:
    found = find(record({("n1", "n2"): 400.0, ("n3", "n4"): 100.0, ("n5", "n6"): 390.0}))
    assert found.nodes == {}
    assert [(pair.a, pair.b) for pair in found.pairs] == [("n3", "n4")]


def test_the_usual_noise_is_nobodys_fault() -> None:
    found = find(all_pairs(4, slow={"n2": 300.0}))
    assert found.ok


@pytest.mark.parametrize(("promised", "named"), [(150.0, []), (None, ["n2"]), (380.0, ["n2"])])
def test_who_keeps_the_promise_of_the_site_is_not_slow(
    promised: float | None, named: list[str]
) -> None:
    sweep = all_pairs(4, slow={"n2": 200.0})
    found = find(Record(**{**_fields(sweep), "expected_gbs": promised}))
    assert list(found.nodes) == named


@pytest.mark.parametrize(("gbs", "below"), [(380.0, False), (281.0, False), (279.0, True)])
def test_all_of_it_may_be_less_than_was_promised(gbs: float, below: bool) -> None:
    small, large = reduced(999.0, size=MIB), reduced(gbs)
    found = find(record(measurements=(large, small), expected_gbs=400.0))
    assert found.expectation == gbs / 400.0
    assert (found.below, found.ok) == (below, not below)


def test_nothing_measured_is_no_finding() -> None:
    found = find(Record())
    assert found.ok
    assert found.to_json()["all_reduce_bus_gbs"] is None


def test_the_ratio_says_what_slow_is() -> None:
    sweep = all_pairs(3, slow={"n3": 120.0})
    assert list(find(sweep).nodes) == ["n3"]
    assert find(Record(**{**_fields(sweep), "ratio": 0.25})).ok


def _fields(sweep: Record) -> dict[str, Any]:
    return {name: getattr(sweep, name) for name in Record.__slots__}


# --- the file ---------------------------------------------------------------------------------


def test_a_record_survives_its_file() -> None:
    sweep = record({("n1", "n2"): 1.25}, expected_gbs=380.0, notes=("a note",), rounds=1)
    assert Record.from_json(json.loads(json.dumps(sweep.to_json()))) == sweep


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"nodes": "n1", "pairs": 7, "measurements": {"a": 1}, "ratio": "x", "ranks": None},
        {"nodes": [1, None], "pairs": [[], {"a": "n1"}, {"a": "n1", "b": "n2", "bus_gbs": "x"}]},
        {"measurements": [{"seconds": True, "algorithm_gbs": 1, "bus_gbs": 1}], "ranks": 1e300},
        {"measurements": [{"seconds": -1, "algorithm_gbs": 1, "bus_gbs": 1}], "ratio": -3},
        {"nodes": ["a\x1b[2J"], "device": ["x"], "complete": 1},
    ],
)
def test_what_cannot_be_used_is_left_out(data: dict[str, Any]) -> None:
    assert Record.from_json(data) == Record()


# --- text -------------------------------------------------------------------------------------


def test_the_table_says_what_was_measured_and_who_is_slow() -> None:
    sweep = all_pairs(4, slow={"n2": 200.0})
    text = report.bandwidth_table(Record(**{**_fields(sweep), "expected_gbs": 400.0}))
    assert "32 ranks on 4 nodes: NVIDIA H200, torch 2.11.0, NCCL 2.28.9" in text
    assert "64 MiB  all_reduce  10 ms  253         380" in text
    assert "380 GB/s bus bandwidth, 95% of the 400 GB/s that the site profile promises" in text
    assert "6 pairs, 200 to 400 GB/s; the usual node's best: 400 GB/s" in text
    assert (
        "slow node n2: an all-reduce of 64 MiB with any of 3 other nodes reaches 200 GB/s" in text
    )
    assert "did not come to its end" not in text


def test_a_sweep_that_broke_off_says_so_and_what_it_has() -> None:
    text = report.bandwidth_table(record(complete=False, notes=("sizes above 4 MiB are left out",)))
    assert "the sweep did not come to its end" in text
    assert text.endswith("note: sizes above 4 MiB are left out")


def test_the_lines_of_a_status() -> None:
    pairs = {(a, b): 400.0 for a, b in combinations(["n1", "n2", "n3"], 2)}
    said = lines(record(pairs | {("n1", "n3"): 90.0}, expected_gbs=760.0))
    assert said == [
        "bandwidth: all-reduce of 64 MiB over all ranks: 380 GB/s bus bandwidth, clearly below the"
        " 760 GB/s that the site profile promises (50%)",
        "bandwidth: slow pair n1 - n3: 90 GB/s",
    ]


def test_many_slow_pairs_are_not_all_listed() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    west = set(names[:4])
    pairs = {
        (a, b): 400.0 if (a in west) == (b in west) else 50.0 for a, b in combinations(names, 2)
    }
    assert lines(record(pairs))[-1] == "bandwidth: 11 more slow pairs"
    assert len(find(record(pairs)).to_json()["slow_pairs"]) == 16


def test_why_a_node_is_slow() -> None:
    sweep = all_pairs(3, slow={"n2": 0.0117}, usual=1.85)
    assert why_slow("n2", find(sweep), sweep) == (
        "an all-reduce of 64 MiB with any of 2 other nodes reaches 0.0117 GB/s at most, where the"
        " usual node reaches 1.85 GB/s (bus bandwidth)"
    )
