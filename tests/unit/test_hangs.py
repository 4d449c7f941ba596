"""When an attempt hangs, and which rank the others wait for."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from orchestrator.judging.hangs import FRESH_S, explain, name, stuck
from orchestrator.rundir.attempt import Hang
from orchestrator.rundir.node_report import NodeReport, RankReport

from .builders import NOW, node_report, rank_report
from .test_stacks import LOADING, VOTING, dump

IN_STEP = dump(LOADING.replace("load_batch", "train_step").replace("data.py", "train.py"))


def nodes(*ranks: RankReport, size: int = 2, **changes: Any) -> list[NodeReport]:
    """Return fresh reports of nodes n1, n2, ... with ``size`` ranks each."""
    groups = [ranks[n : n + size] for n in range(0, len(ranks), size)]
    return [node_report(*group, node=f"n{n}", **changes) for n, group in enumerate(groups, 1)]


def hang(reports: list[NodeReport], **stacks: str) -> Hang | None:
    found = stuck(reports, now=NOW)
    if found is None:
        return None
    return explain(found, stacks={int(key[1:]): text for key, text in stacks.items()})


def why(reports: list[NodeReport], **stacks: str) -> str:
    found = hang(reports, **stacks)
    assert found is not None
    return found.why


def four(**third: Any) -> list[RankReport]:
    """Return four ranks that wait since 312 s, but for the last one."""
    others = [rank_report(n, step=42, waiting=True, idle_s=311.0) for n in range(3)]
    return [*others, rank_report(3, **{"step": 41, "idle_s": 312.0, **third})]


# --- whether it hangs -------------------------------------------------------------------------


def test_it_does_not_while_ranks_are_within_their_limits() -> None:
    assert stuck(nodes(*(rank_report(n, idle_s=299.0) for n in range(4))), now=NOW) is None


def test_it_does_when_all_are_past_them() -> None:
    found = hang(nodes(*(rank_report(n, idle_s=301.0 + n) for n in range(4))))
    assert found is not None
    assert (found.idle_s, found.over_s) == (301.0, 1.0)


def test_one_rank_that_gets_on_is_enough() -> None:
    ranks = [rank_report(n, idle_s=400.0) for n in range(3)]
    assert stuck(nodes(*ranks, rank_report(3, idle_s=2.0)), now=NOW) is None


def test_ranks_that_wait_need_not_be_late() -> None:
    """Rank 3 did not come to the save; the others wait there, where more time is allowed."""
    saving = {"phase": "saving", "limit_s": 1200.0, "waiting": True, "idle_s": 305.0}
    ranks = [rank_report(n, **saving) for n in range(3)]
    found = hang(nodes(*ranks, rank_report(3, idle_s=305.0)))
    assert found is not None
    assert found.ranks == (3,)


def test_long_work_of_one_rank_is_no_hang_for_those_who_wait() -> None:
    """Rank 0 deletes old checkpoints, or evaluates; the others are late, and wait for it."""
    busy = rank_report(0, phase="saving", limit_s=1200.0, idle_s=700.0)
    ranks = [rank_report(n, idle_s=700.0, waiting=True) for n in (1, 2, 3)]
    assert stuck(nodes(busy, *ranks), now=NOW) is None


def test_all_wait_and_nobody_works() -> None:
    found = hang(nodes(*(rank_report(n, waiting=True, idle_s=400.0) for n in range(4))))
    assert found is not None
    assert found.ranks == ()
    assert "which rank did not arrive is not known" in found.why


def test_without_limits_nothing_hangs() -> None:
    ranks = (rank_report(n, idle_s=99999.0, limit_s=None) for n in range(2))
    assert stuck(nodes(*ranks), now=NOW) is None


def test_nothing_reported_is_unknown() -> None:
    assert stuck([], now=NOW) is None
    assert stuck(nodes(*[], size=1), now=NOW) is None
    assert stuck([node_report(node="n1")], now=NOW) is None


@pytest.mark.parametrize("age_s", [FRESH_S + 1, 86400.0, -FRESH_S - 1])
def test_old_reports_alone_are_unknown(age_s: float) -> None:
    ranks = [rank_report(n, idle_s=9999.0) for n in range(2)]
    assert stuck(nodes(*ranks, at=NOW - age_s), now=NOW) is None


def test_clocks_that_differ_a_little_do_not_matter() -> None:
    ranks = [rank_report(n, idle_s=299.0) for n in range(4)]
    for skew_s in (-140.0, 140.0):
        assert stuck(nodes(*ranks, at=NOW + skew_s), now=NOW) is None


def test_ranks_that_were_never_heard_of_double_the_limit() -> None:
    def known(idle_s: float) -> list[NodeReport]:
        return nodes(*(rank_report(n, idle_s=idle_s, world_size=4) for n in range(2)))

    assert stuck(known(599.0), now=NOW) is None
    found = hang(known(601.0))
    assert found is not None
    assert "2 of 4 ranks were never heard of" in found.why


def test_a_node_that_fell_silent_counts_with_its_last_word() -> None:
    """It was in a save that may still go on; later it may not."""
    late = nodes(*(rank_report(n, idle_s=400.0) for n in range(4)))

    def silent(age_s: float) -> list[NodeReport]:
        ranks = [rank_report(n, phase="saving", limit_s=1200.0, idle_s=1.0) for n in (4, 5)]
        return [*late, node_report(*ranks, node="n9", at=NOW - age_s)]

    assert stuck(silent(400.0), now=NOW) is None
    found = hang(silent(1300.0))
    assert found is not None
    assert (found.ranks, found.nodes) == ((4, 5), ("n9",))
    assert "ranks 4-5 on n9 did not arrive: its node has said nothing for 1300 s" in found.why


def test_ranks_that_have_ended_are_left_out() -> None:
    gone = rank_report(1, phase="ending", alive=False, idle_s=9.0)
    assert stuck(nodes(rank_report(0, idle_s=10.0), gone), now=NOW) is None
    assert stuck(nodes(gone), now=NOW) is None
    found = hang(nodes(rank_report(0, phase="ending", idle_s=400.0), gone))
    assert found is not None
    assert found.why.startswith("the end has not come for 400 s (limit 300 s)")


# --- who did not arrive -----------------------------------------------------------------------


def test_the_whole_sentence() -> None:
    text = why(nodes(*four()), r0=dump(VOTING), r1=dump(VOTING), r2=dump(VOTING), r3=dump(LOADING))
    assert text == (
        "no rank has done a step for 312 s (limit 300 s): rank 3 on n2 did not arrive: it stands"
        " in load_batch (data.py:41), the others in should_stop"
    )


def test_without_stacks_the_phase_has_to_do() -> None:
    found = hang(nodes(*four()))
    assert found is not None
    assert (found.ranks, found.nodes) == ((3,), ("n2",))
    assert found.why.endswith("rank 3 on n2 did not arrive: it is training, after step 41")


def test_a_stopped_process() -> None:
    text = why(nodes(*four(stopped=True, idle_s=9.0), size=4))
    assert text.endswith("rank 3 on n1 did not arrive: its process is stopped (state T)")


def test_a_process_that_is_gone() -> None:
    ranks = [rank_report(0, idle_s=301.0), rank_report(1, alive=False, idle_s=301.0)]
    assert why(nodes(*ranks)).endswith("rank 1 on n1 did not arrive: its process is gone")


def test_by_the_step() -> None:
    ranks = [rank_report(n, idle_s=320.0, step=41 + (n != 2)) for n in range(4)]
    found = hang(nodes(*ranks))
    assert found is not None
    assert (found.ranks, found.nodes) == ((2,), ("n2",))


def test_by_who_waits() -> None:
    ranks = [rank_report(n, idle_s=320.0, waiting=n != 1) for n in range(4)]
    found = hang(nodes(*ranks))
    assert found is not None
    assert found.ranks == (1,)


def test_by_the_flight_recorder() -> None:
    counts = [{"0": 812, "1": 40}, {"0": 812, "1": 40}, {"0": 811, "1": 40}, {"0": 812}]
    ranks = [rank_report(n, idle_s=320.0, collectives=c) for n, c in enumerate(counts)]
    found = hang(nodes(*ranks))
    assert found is not None
    assert found.ranks == (2,)


def test_by_the_stacks_of_two_ranks() -> None:
    """One meets the other in a collective: the one that does not is it, although it is 1 to 1."""
    ranks = [rank_report(n, idle_s=320.0) for n in range(2)]
    found = hang(nodes(*ranks), r0=dump(LOADING), r1=dump(VOTING))
    assert found is not None
    assert found.ranks == (0,)


def test_by_the_stacks_of_most() -> None:
    ranks = [rank_report(n, idle_s=320.0) for n in range(4)]
    found = hang(nodes(*ranks), r0=IN_STEP, r1=IN_STEP, r2=dump(LOADING), r3=IN_STEP)
    assert found is not None
    assert found.ranks == (2,)
    assert "the others in train_step (train.py:41)" in found.why


def test_by_a_stack_that_is_missing() -> None:
    ranks = [rank_report(n, idle_s=320.0) for n in range(4)]
    found = hang(nodes(*ranks), r0=IN_STEP, r1=IN_STEP, r3=IN_STEP)
    assert found is not None
    assert found.ranks == (2,)
    assert "rank 2 on n2 did not arrive: it left no stack, the others in train_step" in found.why


def test_nothing_tells_them_apart() -> None:
    ranks = [rank_report(n, idle_s=320.0) for n in range(2)]
    text = why(nodes(*ranks), r0=IN_STEP, r1=IN_STEP)
    assert text.endswith(
        "which rank did not arrive is not known; 2 of 2 stand in train_step (train.py:41)"
    )


def test_half_of_the_ranks_is_the_most_that_can_be_blamed() -> None:
    ranks = [rank_report(n, idle_s=320.0, step=41 + (n == 2)) for n in range(4)]
    found = hang(nodes(*ranks))
    assert found is not None
    assert found.ranks == ()


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("starting", "the start has not got on for 1300 s (limit 1200 s)"),
        ("resuming", "the resume has not ended for 1300 s"),
        ("saving", "the save has not ended for 1300 s"),
        ("loading", "loading has not ended for 1300 s"),
        ("", "the work has not ended for 1300 s"),
    ],
)
def test_in_what_it_hangs(phase: str, words: str) -> None:
    ranks = [rank_report(n, phase=phase, limit_s=1200.0, idle_s=1300.0) for n in range(2)]
    assert why(nodes(*ranks)).startswith(words)


def test_many_ranks_in_few_words() -> None:
    ranks = [rank_report(n, step=41 + (n >= 9), idle_s=320.0) for n in range(40)]
    assert "ranks 0-8 on n1, n2, n3 and 2 more did not arrive" in why(nodes(*ranks))
    found = stuck(nodes(*ranks), now=NOW)
    assert found is not None
    assert name(found.members[::2]).startswith("ranks 0, 2, 4, 6, 8, 10, ... on")


# --- what is written in files -----------------------------------------------------------------


def test_reports_read_back() -> None:
    (report, *_) = nodes(rank_report(0, collectives={"0": 3}, step_s=1.5, wait_s=0.1))
    assert NodeReport.from_json(json.loads(json.dumps(report.to_json()))) == report


@pytest.mark.parametrize("value", [None, "x", -1, 1e300, True, [1], {"a": 1}, 0.5])
@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(RankReport)])
def test_reports_of_any_content_are_read(key: str, value: object) -> None:
    data = node_report(rank_report(0)).to_json()
    data["ranks"] = [{**data["ranks"][0], key: value}, value, {}]
    report = NodeReport.from_json(data)
    assert report is not None
    stuck([report], now=NOW)
    assert NodeReport.from_json({**data, "ranks": value}) is None or value == [1]
