"""Where a run's time went: figures that one can check by hand."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.judging.ledger import Books, Entry, Ledger, Row, account
from orchestrator.rundir.attempt import Attempt

from .builders import attempt

START = 1000.0


def line(number: int, step: int, at: float, **changes: Any) -> dict[str, Any]:
    return {
        "attempt": number,
        "step": step,
        "at": at,
        "step_s": 2.0,
        "blocked_s": 0.5,
        "world_size": 4,
        **changes,
    }


def save(number: int, at: float, took: float) -> dict[str, Any]:
    return {"kind": "save", "attempt": number, "step": 1, "blocked_s": took, "at": at}


def ran(number: int, start: float, end: float | None, resumed: int | None, **more: Any) -> Attempt:
    return attempt(number, started_at=start, ended_at=end, resumed=resumed, **more)


def row(what: Attempt, cause: str | None = "preempted", **changes: Any) -> Row:
    plain: dict[str, Any] = {"queued_s": 5.0, "cause": cause, "alive": False}
    return Row(attempt=what, **{**plain, **changes})


def ledger(*rows: Row, metrics: list[dict[str, Any]], **changes: Any) -> Ledger:
    plain: dict[str, Any] = {
        "checkpoint_step": None,
        "world_size": 8,
        "nproc_per_node": 2,
        "submitted_at": START - 5,
        "now": START + 1000,
        "over": True,
    }
    saves = changes.pop("saves", [])
    return account(rows, Books(metrics=metrics, saves=saves), **{**plain, **changes})


def seconds(entry: Entry) -> list[float | None]:
    names = ("startup_s", "useful_s", "lost_s", "saving_s", "stopping_s", "other_s")
    return [getattr(entry, name) for name in names]


def test_one_attempt_from_start_to_finish() -> None:
    """10 s to the first step, two steps, a save of 3 s between them and one of 4 s at the end."""
    steps = [line(1, 1, START + 12), line(1, 2, START + 17.5)]
    saves = [save(1, START + 15, 3.0), save(1, START + 21.5, 4.0)]
    done = ran(1, START, START + 23, 0, outcome="finished")
    found = ledger(row(done, "finished"), metrics=steps, saves=saves)
    assert seconds(found.entries[0]) == [10.0, 4.0, 0.0, 7.0, 1.5, 0.5]
    assert found.entries[0].total_s == sum(s or 0 for s in seconds(found.entries[0])) == 23
    assert (found.wall_s, found.goodput) == (28.0, 4 / 28)
    assert (found.gpu_s, found.node_s) == (23 * 4, 23 * 2)
    assert found.gpu_goodput == 4 / 23
    assert found.lost_by_cause == {}


def test_steps_done_again_are_the_earlier_attempts_loss() -> None:
    first = [line(1, n, START + 10 + 2 * n) for n in (1, 2, 3)]
    second = [line(2, n, START + 60 + 2 * n) for n in (2, 3)]
    found = ledger(
        row(ran(1, START, START + 20, 0)),
        row(ran(2, START + 40, START + 70, 1, outcome="finished"), "finished", queued_s=20.0),
        metrics=[*first, *second],
    )
    one, two = found.entries
    assert (one.useful_steps, one.lost_steps, one.useful_s, one.lost_s) == (1, 2, 2.0, 4.0)
    assert (two.useful_steps, two.lost_s) == (2, 0.0)
    cost = found.lost_by_cause["preempted"]
    assert (cost.ends, cost.lost_s, cost.stopping_s) == (1, 4.0, 4.0)
    assert (cost.startup_s, cost.queued_s) == (22.0, 20.0)
    assert cost.gpu_s == (4 + 4 + 22) * 4


def test_a_fall_back_undoes_older_steps_and_goes_to_the_end_that_came_before_it() -> None:
    """Step 3 of attempt 1 stood on a checkpoint that attempt 3 found damaged."""
    metrics = [
        *(line(1, n, START + 10 + 2 * n) for n in (1, 2, 3)),
        line(2, 4, START + 60),
        line(3, 2, START + 90),
    ]
    found = ledger(
        row(ran(1, START, START + 20, 0), "notice, saved"),
        row(ran(2, START + 40, START + 70, 3), "node failure"),
        row(ran(3, START + 80, None, 1), None, alive=True),
        metrics=metrics,
        over=False,
        now=START + 100,
    )
    assert [e.lost_steps for e in found.entries] == [2, 1, 0]
    assert found.lost_by_cause["notice, saved"].lost_s == 0
    assert found.lost_by_cause["node failure"].lost_s == 6


def test_without_a_later_attempt_the_newest_checkpoint_tells() -> None:
    metrics = [line(1, n, START + 10 + 2 * n) for n in (1, 2, 3)]
    rows = [row(ran(1, START, START + 20, 0)), row(ran(2, START + 30, START + 40, None))]
    for checkpoint, lost in ((2, 1), (None, 3), (3, 0), (9, 0)):
        for known in (rows[:1], rows):
            found = ledger(*known, metrics=metrics, checkpoint_step=checkpoint)
            assert found.lost_steps == lost


def test_a_living_attempt_counts_until_now_and_has_lost_nothing() -> None:
    alive = row(ran(1, START, None, 0), None, alive=True)
    found = ledger(
        alive, metrics=[line(1, 1, START + 12)], over=False, now=START + 20, checkpoint_step=None
    )
    assert seconds(found.entries[0]) == [10.0, 2.0, 0.0, 0.5, None, 7.5]
    assert (found.entries[0].total_s, found.wall_s) == (20.0, 25.0)


def test_an_attempt_that_died_before_its_first_step_is_all_start_up() -> None:
    dead = row(ran(1, START, START + 30, None), "worker error")
    found = ledger(dead, row(ran(2, START + 40, START + 60, 0)), metrics=[line(2, 1, START + 50)])
    assert seconds(found.entries[0]) == [30.0, 0.0, 0.0, 0, 0.0, 0.0]


def test_a_script_without_metrics_tells_nothing_but_the_queue() -> None:
    found = ledger(row(ran(1, START, START + 30, None)), metrics=[])
    assert seconds(found.entries[0]) == [None] * 6
    assert (found.entries[0].queued_s, found.entries[0].useful_steps) == (5.0, None)
    assert (found.goodput, found.gpu_goodput, found.wall_s) == (None, None, 35.0)
    assert found.gpu_s == 30 * 8


def test_steps_without_their_time_are_counted_and_no_more() -> None:
    bare = {"attempt": 1, "step": 1, "at": START + 12}
    found = ledger(row(ran(1, START, START + 30, 0), None, alive=True), metrics=[bare])
    assert (found.entries[0].useful_steps, found.entries[0].useful_s) == (1, None)
    assert found.goodput is None


def test_steps_without_their_time_leave_the_goodput_unknown() -> None:
    """Also where another attempt died before its first step, of which all is known."""
    untimed = [line(1, 1, 1010, step_s=None)]
    rows = (row(ran(1, 1000, 1030, 0)), row(ran(2, 1040, 1050, 1)))
    found = ledger(*rows, metrics=untimed)
    assert (found.useful_steps, found.goodput, found.gpu_goodput) == (1, None, None)


def test_an_end_that_nobody_wrote_down_is_the_last_that_was_heard() -> None:
    lost = ran(1, START, None, 0, heard_at=START + 13)
    found = ledger(row(lost), metrics=[line(1, 1, START + 12), line(1, 2, START + 14)])
    assert found.entries[0].total_s == 14.0
    assert found.entries[0].stopping_s == 0.0


def test_clocks_that_differ_make_nothing_negative() -> None:
    odd = ran(1, START, START - 50, 0)
    found = ledger(row(odd), metrics=[line(1, 1, START - 20)], submitted_at=START + 500)
    assert all(value is None or value >= 0 for value in seconds(found.entries[0]))
    assert found.entries[0].total_s == found.wall_s == 0.0
    assert found.goodput is None


@pytest.mark.parametrize(
    "noise",
    [
        {},
        {"attempt": "1", "step": 1},
        {"attempt": 1, "step": None},
        {"attempt": True, "step": 2},
        {"attempt": 1, "step": -4},
        {"attempt": 1, "step": 1e300},
    ],
)
def test_lines_that_are_no_steps_are_passed_over(noise: dict[str, Any]) -> None:
    found = ledger(row(ran(1, START, START + 20, 0)), metrics=[noise, line(1, 1, START + 12)])
    assert found.useful_steps + found.lost_steps == 1


@pytest.mark.parametrize("value", ["2", None, True, -1.0, 1e300, float("nan")])
def test_times_that_are_none_count_as_unknown(value: Any) -> None:
    metrics = [line(1, 1, START + 12), {**line(1, 2, 0), "step_s": value, "at": value}]
    saves = [save(1, value, 1.0), {**save(1, START, 1.0), "blocked_s": value}]
    found = ledger(
        row(ran(1, START, START + 20, 0)), metrics=metrics, saves=saves, checkpoint_step=2
    )
    assert (found.useful_steps, found.useful_s, found.saving_s) == (2, 2.0, 1.0)


def test_a_step_that_an_attempt_did_twice_counts_once() -> None:
    """torchrun can start its workers again within an attempt."""
    metrics = [line(1, 1, START + 12), line(1, 2, START + 14), line(1, 2, START + 30)]
    found = ledger(row(ran(1, START, START + 40, 0)), metrics=metrics, checkpoint_step=2)
    assert (found.useful_steps, found.lost_steps) == (2, 1)


def test_a_line_that_is_only_told_again_is_no_step() -> None:
    """A validation that was made up for: the next attempt writes the line with it."""
    again = line(1, 2, START + 14, step_s=0.0, blocked_s=0.0, again=True, eval={"loss": 2.0})
    metrics = [line(1, 1, START + 12), line(1, 2, START + 14), again]
    rows = (row(ran(1, START, START + 20, 0)), row(ran(2, START + 25, START + 40, 2)))
    found = ledger(*rows, metrics=metrics, checkpoint_step=2)
    assert (found.useful_steps, found.useful_s, found.lost_steps) == (2, 4.0, 0)


def test_without_any_save_written_down_the_lines_tell_what_blocked() -> None:
    metrics = [line(1, 1, START + 12), line(1, 2, START + 14.5)]
    rows = row(ran(1, START, START + 20, 0))
    assert ledger(rows, metrics=metrics).saving_s == 1.0
    assert ledger(rows, metrics=metrics, saves=[save(2, START, 1.0)]).saving_s == 0.0


def test_each_attempt_counts_with_its_own_number_of_ranks() -> None:
    found = ledger(
        row(ran(1, START, START + 20, 0)),
        row(ran(2, START + 20, START + 30, 1)),
        metrics=[line(1, 1, START + 12, world_size=16), line(2, 2, START + 25, world_size=3)],
    )
    assert [e.gpus for e in found.entries] == [16, 3]
    assert found.gpu_s == 20 * 16 + 10 * 3
    assert found.node_s == 20 * 8 + 10 * 2


def test_a_run_that_has_not_started() -> None:
    found = ledger(metrics=[], over=False, now=START)
    assert (found.entries, found.wall_s, found.goodput, found.gpu_s) == ((), 5.0, None, 0)
    assert ledger(metrics=[], submitted_at=None).wall_s is None


def test_the_time_of_a_run_that_is_over_has_ended() -> None:
    one = row(ran(1, START, START + 20, 0))
    assert ledger(one, metrics=[]).wall_s == 25.0
    assert ledger(one, metrics=[], over=False).wall_s == 1005.0
    assert ledger(one, metrics=[], submitted_at=None).wall_s == 20.0
