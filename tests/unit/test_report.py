"""A run's status: the keys that others rely on, and the arithmetic of what was lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import report
from orchestrator.bandwidth import Record
from orchestrator.decide import (
    Action,
    CancelJobs,
    Observation,
    Over,
    Restart,
    StartNow,
    Wait,
    decide,
)
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.judging.ledger import Books
from orchestrator.judging.nodes import Suspicion
from orchestrator.report import DrillReport, Status, Told
from orchestrator.rundir.attempt import Attempt, Hang, Straggler, Weight
from orchestrator.rundir.environment import Change
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, finding, job, past, plan, rank_error, seen
from .test_bandwidth import all_pairs

KEYS = {"run", "state", "job_id", "attempt", "step", "steps_total", "checkpoint_step"} | {
    *("cause", "next", "attempts"),
}
ROW_KEYS = (
    "attempt job_id restart state cause nodes switches first_step last_step steps_lost queued_s"
)
SECONDS = "startup_s useful_s lost_s saving_s stopping_s other_s"
STATES = "pending starting running stopping requeued waiting held finished failed cancelled"
RUNNING = Wait("running", "job 7 is running on n[1-2]")


def sight(what: Observation, **history: Any) -> Sight:
    return Sight(RunLayout(Path("/runs/llama")), plan(steps_total=100), what, past(**history))


def status(
    what: Observation,
    action: Action = RUNNING,
    *attempts: Attempt,
    metrics: dict[str, Any] | None = None,
    told: dict[int, Told] | None = None,
    submitted_at: float | None = None,
    books: Books | None = None,
    bandwidth: Record | None = None,
) -> Status:
    return report.status(
        sight(what),
        action,
        attempts=attempts,
        metrics=metrics or {},
        told=told or {},
        submitted_at=submitted_at,
        books=books,
        bandwidth=bandwidth,
    )


def rows(found: Status, key: str) -> list[Any]:
    return [row[key] for row in found.attempts]


# --- the keys ---------------------------------------------------------------------------------


def test_the_keys_of_a_status_are_the_promised_ones() -> None:
    data = status(seen(job()), RUNNING, attempt()).to_json()
    assert set(data) >= KEYS
    more = {"loss", "tokens_per_s", "quarantined", "error", "goodput", "interval"}
    more |= {"environment_changes", "hang", "straggler", "bad_nodes", "spread"}
    more |= {"bandwidth", "network", "validation"}
    assert set(data) - KEYS == more
    assert [list(row) for row in data["attempts"]] == [
        [*ROW_KEYS.split(), "started_at", "ended_at", "network", "why", *SECONDS.split()]
    ]
    assert json.loads(json.dumps(data)) == data


def test_everything_is_null_or_empty_before_the_first_attempt() -> None:
    data = status(seen(job(state=JobState.PENDING)), Wait("pending", "Priority")).to_json()
    assert data == {
        "run": "llama",
        "state": "pending",
        "job_id": "7",
        "attempt": None,
        "step": None,
        "steps_total": 100,
        "checkpoint_step": None,
        "cause": None,
        "next": "Priority",
        "loss": None,
        "tokens_per_s": None,
        "quarantined": [],
        "error": None,
        "attempts": [],
        "goodput": None,
        "interval": None,
        "environment_changes": [],
        "hang": None,
        "straggler": None,
        "bad_nodes": [],
        "spread": None,
        "bandwidth": None,
        "network": None,
        "validation": None,
    }


def test_values_of_a_running_attempt() -> None:
    data = status(
        seen(job(), checkpoint_step=40),
        RUNNING,
        attempt(resumed=0, last_step=43, started_at=NOW - 100),
        metrics={"loss": 2.5, "tokens_per_s": 1000.0, "step": 43},
        submitted_at=NOW - 130,
    ).to_json()
    assert (data["state"], data["attempt"], data["step"]) == ("running", 1, 43)
    assert (data["checkpoint_step"], data["loss"], data["tokens_per_s"]) == (40, 2.5, 1000.0)
    assert data["attempts"] == [
        {
            "attempt": 1,
            "job_id": "7",
            "restart": 0,
            "state": "running",
            "cause": None,
            "nodes": "n[1-2]",
            "switches": [],
            "first_step": 1,
            "last_step": 43,
            "steps_lost": None,
            "queued_s": 30.0,
            "started_at": NOW - 100,
            "ended_at": None,
            "network": None,
            "why": None,
            **dict.fromkeys(SECONDS.split()),
        }
    ]


def test_the_error_of_the_newest_attempt_and_all_that_was_quarantined() -> None:
    data = status(
        seen(job(state=JobState.FAILED)),
        Over("failed", "rank 3 failed", Cause.WORKER_ERROR),
        attempt(1, quarantined=((20, "a is missing"),), error=rank_error("old")),
        attempt(2, quarantined=((10, "b is missing"),), error=rank_error("new")),
    ).to_json()
    assert data["error"] == {"rank": 3, "node": "n2", "step": 41, "exception": "new"}
    assert data["quarantined"] == [
        {"step": 20, "reason": "a is missing"},
        {"step": 10, "reason": "b is missing"},
    ]


def test_a_hang_and_a_straggler_are_told_while_the_attempt_lives() -> None:
    hang = Hang(why="no rank has done a step for 312 s", idle_s=312, over_s=12)
    slow = Straggler(rank=3, node="n2", share=0.4, why="rank 3 on n2 is the slowest")
    said = attempt(hang=hang, straggler=slow)
    found = status(seen(job(), attempt=said), RUNNING, attempt())
    assert (found.hang, found.straggler) == (hang.why, slow.why)
    text = report.details(found).splitlines()
    assert "hangs: no rank has done a step for 312 s" in text
    assert "slow: rank 3 on n2 is the slowest" in text
    for what in (
        seen(job(state=JobState.FAILED), attempt=said),
        seen(job(restart=1), attempt=said),
        seen(job(), attempt=said, finished=True),
    ):
        ended = status(what, RUNNING, attempt())
        assert (ended.hang, ended.straggler) == (None, None)


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("said", [attempt(), attempt(last_step=3), attempt(action="none")])
def test_the_state_is_one_of_the_promised_words(state: JobState, said: Attempt) -> None:
    for in_queue in (True, False):
        what = seen(job(state=state, in_queue=in_queue), attempt=said)
        shown = sight(what)
        action = decide(what, shown.past, shown.policy)
        found = status(what, action, said).state
        assert found in {*STATES.split(), "unreachable", "unknown"}


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (Over("finished", "done", Cause.FINISHED), "finished"),
        (StartNow("7", 1, "begin time"), "requeued"),
        (Restart("key", "7", Verdict(Cause.PREEMPTED, "preempted"), "preempted"), "waiting"),
        (CancelJobs(("7",), "cancelled"), "stopping"),
        (Wait("unreachable", "no answer"), "unreachable"),
        (Wait("held", "held"), "held"),
    ],
)
def test_the_state_follows_the_action(action: Action, state: str) -> None:
    found = status(seen(job()), action, attempt(last_step=1))
    assert found.state == state
    assert found.next.startswith(action.why)


def test_who_only_looks_is_told_who_acts() -> None:
    found = status(
        seen(job()), Restart("key", "7", Verdict(Cause.PREEMPTED, "preempted"), "preempted")
    )
    assert found.next == "preempted; `fsdpq watch` restarts it"


def test_a_message_of_many_lines_does_not_break_the_table() -> None:
    found = status(seen(job()), Wait("waiting", "one\ntwo " + "x" * 9000), attempt(last_step=1))
    assert "\n" not in found.next
    assert len(found.next) < 300


def test_nothing_of_a_finished_attempt_is_lost() -> None:
    done = attempt(outcome="finished", action="finished", last_step=30)
    over = Over("finished", "done", Cause.FINISHED)
    assert status(seen(checkpoint_step=None), over, done).attempts[0]["steps_lost"] == 0


def test_running_is_starting_until_the_first_step() -> None:
    assert status(seen(job()), RUNNING).state == "starting"
    assert status(seen(job()), RUNNING, attempt(last_step=9), attempt(2)).state == "starting"
    assert status(seen(job()), RUNNING, attempt(2, last_step=1)).state == "running"


def test_the_job_is_the_live_one_or_the_one_that_was_submitted_last() -> None:
    assert status(seen(job("8"), job("7", JobState.FAILED))).job_id == "8"
    assert status(seen()).job_id == "7"
    assert report.status(
        sight(seen(), submitted=()), RUNNING, attempts=[], metrics={}, told={}, submitted_at=None
    ).job_id is None  # fmt: skip
    assert status(dataclasses.replace(seen(), jobs=None)).job_id == "7"


# --- how each attempt ended -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "state", "cause"),
    [
        ({"outcome": "finished"}, "finished", "finished"),
        ({"action": "finished"}, "finished", "finished"),
        ({"outcome": "stopped", "noticed": True, "action": "requeue"}, "stopped", "notice, saved"),
        ({"error": rank_error()}, "failed", "worker error"),
        ({"outcome": "no_checkpoint"}, "failed", "no usable checkpoint"),
        ({"noticed": True}, "ended", "notice, not saved"),
        ({}, "ended", "ended without notice"),
    ],
)
def test_how_an_earlier_attempt_ended(changes: dict[str, Any], state: str, cause: str) -> None:
    found = status(seen(job("8")), RUNNING, attempt(1, **changes), attempt(2, job_id="8"))
    assert rows(found, "state") == [state, "running"]
    assert rows(found, "cause") == [cause, None]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "put back by Slurm"),
        ({"noticed": True}, "put back by Slurm"),
        ({"noticed": True, "action": "none"}, "notice, not saved"),
        ({"findings": (finding("preempted", Cause.PREEMPTED, Weight.SLURM),)}, "preempted"),
        (
            {"findings": (finding("node-failure", Cause.NODE_FAILURE, Weight.SLURM),)},
            "node failure",
        ),
        ({"findings": (finding("requeued", Cause.NOTICE, Weight.ECHO),)}, "put back by Slurm"),
    ],
)
def test_how_an_attempt_ended_that_slurm_started_again(changes: dict[str, Any], cause: str) -> None:
    found = status(seen(job(restart=1)), RUNNING, attempt(1, **changes), attempt(2, restart=1))
    assert rows(found, "cause") == [cause, None]


def test_slurms_word_beats_the_errors_of_those_that_lived_on() -> None:
    lost = finding("node-failure", Cause.NODE_FAILURE, Weight.SLURM)
    first = attempt(1, error=rank_error("VoteError: one is gone"), findings=(lost,))
    found = status(seen(job(restart=1)), RUNNING, first, attempt(2, restart=1))
    assert rows(found, "cause") == ["node failure", None]


def test_the_last_attempt_ended_for_the_cause_that_was_decided() -> None:
    action = Restart("key", None, Verdict(Cause.PREEMPTED, "preempted"), "preempted")
    earlier = attempt(1, job_id="6")
    found = status(seen(job(state=JobState.PREEMPTED)), action, earlier, attempt(2))
    assert rows(found, "cause") == ["ended without notice", "preempted"]
    assert found.cause == "preempted"


def test_the_cause_of_a_running_run_is_that_of_the_attempt_before() -> None:
    stopped = attempt(1, outcome="stopped", action="requeue")
    found = status(seen(job(restart=1)), RUNNING, stopped, attempt(2, restart=1))
    assert found.cause == "notice, saved"


@pytest.mark.parametrize(
    ("what", "said", "alive"),
    [
        (job(), attempt(), True),
        (job(state=JobState.COMPLETING), attempt(), True),
        (job(restart=None), attempt(restart=4), True),
        (job(restart=1), attempt(restart=0), False),  # it was requeued since
        (job("8"), attempt(job_id="7"), False),
        (job(state=JobState.FAILED), attempt(), False),
        (job(in_queue=False), attempt(), False),
        (job(), attempt(action="requeue"), False),
    ],
)
def test_which_attempt_is_alive(what: Any, said: Attempt, alive: bool) -> None:
    (row,) = status(seen(what), RUNNING, said).attempts
    assert (row["state"] == "running") is alive


def test_nothing_is_alive_in_a_finished_run() -> None:
    over = Over("finished", "done", Cause.FINISHED)
    found = status(seen(job(), finished=True), over, attempt(outcome="finished", last_step=100))
    assert rows(found, "state") == ["finished"]
    assert rows(found, "cause") == ["finished"]


# --- steps lost and time in the queue ---------------------------------------------------------


def lost(attempts: list[Attempt], checkpoint: int | None = None, *jobs: Any) -> list[int | None]:
    return rows(status(seen(*jobs, checkpoint_step=checkpoint), RUNNING, *attempts), "steps_lost")


def ran(number: int, resumed: int | None, last: int | None, **changes: Any) -> Attempt:
    plain = {"restart": number - 1, "resumed": resumed, "last_step": last}
    return attempt(number, **{**plain, **changes})


def test_a_saved_stop_loses_nothing() -> None:
    assert lost([ran(1, 0, 42), ran(2, 42, 50)], 50) == [0, 0]


def test_a_kill_loses_what_came_after_the_checkpoint() -> None:
    assert lost([ran(1, 0, 47), ran(2, 40, 44), ran(3, 40, 60)], 60) == [7, 4, 0]


def test_falling_back_to_an_older_checkpoint_counts_for_the_last_attempt_only() -> None:
    assert lost([ran(1, 0, 40), ran(2, 40, 55), ran(3, 20, 30)], 30) == [0, 35, 0]


def test_an_attempt_that_never_said_where_it_started_is_looked_through() -> None:
    assert lost([ran(1, 0, 47), ran(2, None, None), ran(3, 40, 41)], 40) == [7, 0, 1]


def test_the_last_one_counts_against_the_newest_checkpoint() -> None:
    assert lost([ran(1, 0, 47)], 40) == [7]
    assert lost([ran(1, 0, 47)], None) == [47]
    assert lost([ran(1, 0, 47)], 47) == [0]
    # A checkpoint that is newer than what the attempt had time to tell.
    assert lost([ran(1, 0, 47)], 50) == [0]


def test_an_allocation_over_more_switches_than_it_needs() -> None:
    what = dataclasses.replace(sight(seen(job())), plan=plan(nodes_per_group=2))
    spread = attempt(nodes="n[1,3,2]", switches=("s0", "s1", "s2"))

    def told(newest: Attempt) -> Status:
        return report.status(
            what, RUNNING, attempts=[newest], metrics={}, told={}, submitted_at=None
        )

    text = "attempt 1 runs over 3 switches or blocks (s0, s1, s2), and 2 would hold its nodes"
    assert text in report.details(told(spread))
    assert told(spread).to_json()["attempts"][0]["switches"] == ["s0", "s1", "s2"]
    assert told(dataclasses.replace(spread, switches=("s0", "s1"))).spread is None


@pytest.mark.parametrize(
    ("state", "reason", "asked", "says"),
    [
        (JobState.PENDING, "Resources", "1@00:10:00", True),
        (JobState.PENDING, "Priority", "1@00:10:00", False),
        (JobState.PENDING, "Resources", None, False),
        (JobState.RUNNING, "Resources", "1@00:10:00", False),
    ],
)
def test_a_job_that_may_wait_for_its_switches(
    state: JobState, reason: str, asked: str | None, says: bool
) -> None:
    options = (("switches", asked),) if asked else ()
    waiting = seen(job(state=state, reason=reason))
    what = dataclasses.replace(sight(waiting), plan=plan(directives=options))
    wait = Wait("pending", f"job 7 is pending: {reason}")
    found = report.status(what, wait, attempts=[], metrics={}, told={}, submitted_at=None)
    assert found.next.endswith("--switches=1@00:10:00, and may wait for that)") is says


def test_an_attempt_without_a_step_lost_none_and_a_running_one_cannot_be_told() -> None:
    assert lost([ran(1, 0, None)], 40) == [0]
    assert lost([ran(1, 0, 47), ran(2, 40, 60)], 40, job(restart=1)) == [7, None]


@pytest.mark.parametrize(
    ("before", "queued_s"),
    [
        ({"ended_at": NOW - 100}, 60.0),
        ({"ended_at": None, "heard_at": NOW - 90}, 50.0),
        ({"ended_at": None, "heard_at": None}, None),
        ({"ended_at": NOW}, 0.0),  # clocks of two hosts
    ],
)
def test_time_from_the_end_before_to_the_start(
    before: dict[str, Any], queued_s: float | None
) -> None:
    first, second = ran(1, 0, 9, **before), ran(2, 0, 9, started_at=NOW - 40)
    assert rows(status(seen(), RUNNING, first, second), "queued_s")[1] == queued_s


def test_time_from_the_submission_to_the_first_start() -> None:
    first = ran(1, 0, 9, started_at=NOW - 100)
    assert rows(status(seen(), RUNNING, first, submitted_at=NOW - 112.34), "queued_s") == [12.3]
    assert rows(status(seen(), RUNNING, first), "queued_s") == [None]
    unstarted = ran(1, 0, 9, started_at=None)
    assert rows(status(seen(), RUNNING, unstarted, submitted_at=NOW), "queued_s") == [None]


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


def test_a_changed_environment_is_said() -> None:
    change = Change(before=1, after=2, what=("torch 2.13.0 -> 2.14.1",))
    found = dataclasses.replace(status(seen(job()), RUNNING), environment_changes=(change,))
    assert report.details(found).splitlines()[-1] == str(change)
    assert found.to_json()["environment_changes"] == [
        {"from": 1, "to": 2, "changes": ["torch 2.13.0 -> 2.14.1"]}
    ]


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


def test_why_an_attempt_ended_stays_what_was_found_then() -> None:
    found = status(seen(job()), RUNNING, attempt(1), attempt(2), told={1: Told("preempted")})
    assert rows(found, "cause")[0] == "preempted"


# --- where the time went ------------------------------------------------------------------------


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


def test_bad_nodes_are_shown_with_their_reason() -> None:
    against = tuple(Suspicion("n2", Cause.WORKER_ERROR, NOW - at, at) for at in (1, 2))
    what = dataclasses.replace(sight(seen(job())), past=past(suspicions=against))
    found = report.status(
        what, RUNNING, attempts=[attempt()], metrics={}, told={}, submitted_at=None
    )
    assert "left out: n2 (worker error, 2 times)" in report.details(found)
    (bad,) = found.to_json()["bad_nodes"]
    assert (bad["node"], bad["cause"], bad["times"]) == ("n2", "worker error", 2)


def test_an_attempt_without_a_step_shows_none() -> None:
    text = report.details(status(seen(job()), RUNNING, attempt(resumed=10, last_step=10)))
    assert "11..10" not in text


def test_a_killed_attempt_ends_when_a_watcher_says_so_or_the_next_begins() -> None:
    """Its own shell could not write it down, and the time until then is no queue."""
    first = attempt(1, started_at=NOW - 300, heard_at=NOW - 280, last_step=25)
    second = attempt(2, restart=1, started_at=NOW - 100)
    told = {1: Told("hang", "rank 1 on n2 did not arrive", NOW - 150)}
    found = status(seen(job(restart=1)), RUNNING, first, second, told=told)
    assert rows(found, "ended_at") == [NOW - 150, None]
    assert rows(found, "queued_s")[1] == 50.0
    assert rows(found, "why") == ["rank 1 on n2 did not arrive", None]
    assert "attempt 1: rank 1 on n2 did not arrive" in report.details(found)
    late = {1: Told("hang", "", NOW - 10)}
    found = status(seen(job(restart=1)), RUNNING, first, second, told=late)
    assert rows(found, "ended_at") == [NOW - 100, None]


def test_who_is_slow_on_the_network_is_shown() -> None:
    found = status(seen(job()), RUNNING, attempt(), bandwidth=all_pairs(3, slow={"n2": 20.0}))
    assert "bandwidth: slow node n2: an all-reduce of 64 MiB" in report.details(found)
    slow = found.to_json()["bandwidth"]["slow_nodes"]
    assert slow == [{"node": "n2", "best_bus_gbs": 20.0}]


@pytest.mark.parametrize(
    ("resumed", "last", "shown"), [(None, None, "-"), (0, None, "1..-"), (0, 9, "1..9")]
)
def test_the_steps_of_an_attempt(resumed: int | None, last: int | None, shown: str) -> None:
    found = status(seen(), RUNNING, attempt(resumed=resumed, last_step=last))
    (row,) = [line.split() for line in report.details(found).splitlines() if " 7 " in line][-1:]
    assert row[4] == shown
