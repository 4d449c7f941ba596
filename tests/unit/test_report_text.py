"""What people read of a status: lines, details, and where the time went."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from orchestrator import report
from orchestrator.decide import Over
from orchestrator.judging.classify import Cause
from orchestrator.judging.ledger import Books
from orchestrator.judging.nodes import Suspicion
from orchestrator.report import DrillReport, Status, Told
from orchestrator.rundir.attempt import Attempt
from orchestrator.rundir.environment import Change
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, job, past, plan, rank_error, seen
from .statuses import RUNNING, SECONDS, ran, sight, status
from .test_bandwidth import all_pairs

# --- as text ----------------------------------------------------------------------------------


def test_a_line_a_run() -> None:
    found = status(
        seen(job(), checkpoint_step=40), RUNNING, attempt(last_step=43), metrics={"loss": 2.5}
    )
    head, line = report.overview([found]).splitlines()
    assert head.split() == ["RUN", "STATE", "JOB", "ATTEMPT", "STEP", "SAVED", "LOSS", "NEXT"]
    assert line.split(maxsplit=7)[:7] == ["llama", "running", "7", "1", "43/100", "40", "2.5000"]
    assert line.endswith(RUNNING.why)


def test_details_have_everything_and_no_none() -> None:
    found = status(
        seen(job(state=JobState.FAILED), checkpoint_step=40),
        Over("failed", "rank 3 on n2 failed", Cause.WORKER_ERROR),
        ran(1, 0, 47, outcome="stopped", quarantined=((20, "a is missing"),)),
        ran(2, None, None, error=rank_error(), started_at=None),
    )
    text = report.details(found)
    assert "None" not in text
    assert "1..47" in text
    assert "-..-" not in text
    assert "quarantined: checkpoint of step 20: a is missing" in text
    assert "rank 3 on n2: ValueError: bad batch" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_line_for_a_log() -> None:
    found = status(seen(job()), RUNNING, attempt(last_step=43), metrics={"loss": 2.5})
    assert report.progress(found) == "llama  running  attempt 1  step 43/100  loss 2.5000"
    empty = dataclasses.replace(status(seen()), steps_total=None)
    assert report.progress(empty) == "llama  starting  no attempt yet  step -"


def test_columns() -> None:
    assert report.columns([("A", "B"), ("long", "")]) == "A     B\nlong"


def test_what_a_drill_found() -> None:
    found = DrillReport(
        run="llama",
        attempt=1,
        stopped_at=42,
        resumed_at=40,
        steps_lost=2,
        stop_s=None,
        down_s=12.6,
    )
    text = report.drill(found)
    assert "stopped after step 42, an unknown time after the notice" in text
    assert "attempt 2 resumed from step 40: 2 steps lost" in text
    assert "13 s after the notice" in text
    assert set(found.to_json()) >= {"run", "steps_lost", "stop_s", "down_s"}


@pytest.mark.parametrize(
    ("resumed", "last", "shown"), [(None, None, "-"), (0, None, "1..-"), (0, 9, "1..9")]
)
def test_the_steps_of_an_attempt(resumed: int | None, last: int | None, shown: str) -> None:
    found = status(seen(), RUNNING, attempt(resumed=resumed, last_step=last))
    (row,) = [line.split() for line in report.details(found).splitlines() if " 7 " in line][-1:]
    assert row[4] == shown


def test_an_attempt_without_a_step_shows_none() -> None:
    text = report.details(status(seen(job()), RUNNING, attempt(resumed=10, last_step=10)))
    assert "11..10" not in text


# --- what is said of nodes and their software -------------------------------------------------


def test_a_changed_environment_is_said() -> None:
    change = Change(before=1, after=2, what=("torch 2.13.0 -> 2.14.1",))
    found = dataclasses.replace(status(seen(job()), RUNNING), environment_changes=(change,))
    assert report.details(found).splitlines()[-1] == str(change)
    assert found.to_json()["environment_changes"] == [
        {"from": 1, "to": 2, "changes": ["torch 2.13.0 -> 2.14.1"]}
    ]


def test_an_allocation_over_more_switches_than_it_needs() -> None:
    what = dataclasses.replace(sight(seen(job())), plan=plan(nodes_per_group=2))
    spread = attempt(nodes="n[1,3,2]", switches=("s0", "s1", "s2"))

    def told(newest: Attempt) -> Status:
        return status(what, RUNNING, newest)

    text = "attempt 1 runs over 3 switches or blocks (s0, s1, s2), and 2 would hold its nodes"
    assert text in report.details(told(spread))
    assert told(spread).to_json()["attempts"][0]["switches"] == ["s0", "s1", "s2"]
    assert told(dataclasses.replace(spread, switches=("s0", "s1"))).spread is None


def test_bad_nodes_are_shown_with_their_reason() -> None:
    against = tuple(Suspicion("n2", Cause.WORKER_ERROR, NOW - at, at) for at in (1, 2))
    what = dataclasses.replace(sight(seen(job())), past=past(suspicions=against))
    found = status(what, RUNNING, attempt())
    assert "left out: n2 (worker error, 2 times)" in report.details(found)
    (bad,) = found.to_json()["bad_nodes"]
    assert (bad["node"], bad["cause"], bad["times"]) == ("n2", "worker error", 2)


def test_who_is_slow_on_the_network_is_shown() -> None:
    found = status(seen(job()), RUNNING, attempt(), bandwidth=all_pairs(3, slow={"n2": 20.0}))
    assert "bandwidth: slow node n2: an all-reduce of 64 MiB" in report.details(found)
    slow = found.to_json()["bandwidth"]["slow_nodes"]
    assert slow == [{"node": "n2", "best_bus_gbs": 20.0}]


# --- where the time went ----------------------------------------------------------------------


def twice(**changes: Any) -> Status:
    """A run that was preempted without a word after step 3, and has done 3 and 4 since."""
    first = attempt(1, resumed=0, last_step=3, started_at=NOW - 90, ended_at=NOW - 50)
    second = attempt(2, restart=1, resumed=2, last_step=4, started_at=NOW - 40)
    line = {"step_s": 5.0, "world_size": 1}
    metrics = [
        *({**line, "attempt": 1, "step": n, "at": NOW - 80 + 6 * n} for n in (1, 2, 3)),
        *({**line, "attempt": 2, "step": n, "at": NOW - 25 + 6 * (n - 3)} for n in (3, 4)),
    ]
    books = Books(metrics=metrics, **changes)
    what = seen(job(restart=1), checkpoint_step=2)
    told = {1: Told("preempted")}
    return status(what, RUNNING, first, second, told=told, submitted_at=NOW - 100, books=books)


def test_the_ledger_in_json() -> None:
    data = twice().to_json()
    assert json.loads(json.dumps(data)) == data
    seconds = [[row[key] for key in SECONDS.split()] for row in data["attempts"]]
    assert seconds == [[11.0, 10.0, 5.0, 0.0, 12.0, 2.0], [10.0, 10.0, 0.0, 0.0, None, 20.0]]
    assert data["goodput"]["goodput"] == 0.2
    assert data["goodput"]["wall_s"] == 100
    assert data["goodput"]["lost_by_cause"]["preempted"]["lost_s"] == 5


def test_the_ledger_as_text() -> None:
    text = report.details(twice())
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "1        10 s    11 s      10 s    5.0 s  0.0 s   12 s      2.0 s" in text
    assert "2        10 s    10 s      10 s    0.0 s  0.0 s   -         20 s" in text
    wanted = "goodput 20.0%: 20 s of steps that count in 100 s since the submission; 25.0% of"
    assert wanted in text
    assert "preempted, 1x: 5.0 s done again, 12 s stopping, 10 s queued, 10 s start-up" in text
    assert "checkpoint interval" not in text


def test_a_run_without_metrics_has_no_second_table() -> None:
    found = status(seen(job()), RUNNING, attempt(), books=Books(metrics=[]))
    assert found.goodput is not None
    assert found.goodput["goodput"] is None
    assert "USEFUL" not in report.details(found)


def test_the_interval_that_auto_chose_last() -> None:
    chosen = [{"kind": "interval", "steps": n, "why": f"{n} steps"} for n in (10, 20)]
    found = twice(saves=[*chosen, {"kind": "save"}])
    assert found.interval == chosen[1]
    assert "checkpoint interval: 20 steps" in report.details(found)
    assert twice(saves=[{"kind": "interval", "why": 7}]).interval is None


def test_a_run_whose_start_nobody_wrote_down() -> None:
    lines = [{"attempt": 1, "step": 1, "step_s": 5.0, "at": NOW - 10}]
    unknown = attempt(1, started_at=None, last_step=1)
    found = status(seen(job()), RUNNING, unknown, books=Books(metrics=lines), submitted_at=NOW - 50)
    assert "goodput 10.0%" in report.details(found)
    assert "None" not in report.details(found)
