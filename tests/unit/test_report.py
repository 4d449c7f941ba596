"""A run's status: the keys that others rely on, and its state in one of the promised words."""

from __future__ import annotations

import dataclasses
import json

import pytest

from orchestrator import report
from orchestrator.decide import Action, CancelJobs, Over, Restart, StartNow, Wait, decide
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.rundir.attempt import Attempt, Hang, Straggler
from orchestrator.scheduler import JobState

from .builders import NOW, attempt, job, plan, rank_error, seen
from .statuses import RUNNING, SECONDS, sight, status

KEYS = {"run", "state", "job_id", "attempt", "step", "steps_total", "checkpoint_step"} | {
    *("cause", "next", "attempts"),
}
ROW_KEYS = (
    "attempt job_id restart state cause nodes switches first_step last_step steps_lost queued_s"
)
STATES = "pending starting running stopping requeued waiting held finished failed cancelled"


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


# --- the state, and what comes next -----------------------------------------------------------


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


def test_running_is_starting_until_the_first_step() -> None:
    assert status(seen(job()), RUNNING).state == "starting"
    assert status(seen(job()), RUNNING, attempt(last_step=9), attempt(2)).state == "starting"
    assert status(seen(job()), RUNNING, attempt(2, last_step=1)).state == "running"


def test_the_job_is_the_live_one_or_the_one_that_was_submitted_last() -> None:
    assert status(seen(job("8"), job("7", JobState.FAILED))).job_id == "8"
    assert status(seen()).job_id == "7"
    assert status(sight(seen(), submitted=())).job_id is None
    assert status(dataclasses.replace(seen(), jobs=None)).job_id == "7"


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
    found = status(what, wait)
    assert found.next.endswith("--switches=1@00:10:00, and may wait for that)") is says
