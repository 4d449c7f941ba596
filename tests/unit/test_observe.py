from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decide import Over, Restarted, decide
from orchestrator.errors import QueryError
from orchestrator.judging.classify import Cause
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.runstore.history import history
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import Answer, Ids, JobRecord, JobState, no_ids
from orchestrator.watching import observe

from .builders import attempt, job, make_run, past, seen


@dataclass
class Asked:
    """A scheduler that answers always the same, and keeps what it was asked."""

    answer: Answer | QueryError
    questions: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def jobs(self, names: Sequence[str], *, ids: Ids = no_ids) -> Answer:
        if isinstance(self.answer, QueryError):
            self.questions.append((tuple(names), ()))
            raise self.answer
        found = [record for record in self.answer.records if record.in_queue]
        self.questions.append((tuple(names), tuple(sorted(ids(found)))))
        return self.answer

    def requeue(self, job_id: str) -> None:
        raise AssertionError

    start_now = cancel = requeue

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        raise AssertionError

    def node_count(self, partition: str | None) -> int | None:
        raise AssertionError

    def notify(self, job_id: str, *, signal: str) -> None:
        raise AssertionError


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return make_run(tmp_path / "a", job_name="a-1")


def look(run: RunLayout, answer: Answer | QueryError) -> Sight:
    (sight,) = observe.look([(run, store.load_plan(run))], Asked(answer))
    return sight


def records(*found: JobRecord, silent: str = "") -> Answer:
    return Answer(found, silent)


def test_a_run_sees_only_jobs_of_its_own_name(run: RunLayout) -> None:
    mine, other = job(name="a-1"), job("8", name="b-1")
    assert look(run, records(other, mine)).seen.jobs == (mine,)


def test_no_answer_is_not_no_jobs(run: RunLayout) -> None:
    error = QueryError(["squeue"], returncode=1, stderr="Unable to contact")
    assert look(run, error).seen.jobs is None
    assert look(run, records()).seen.jobs == ()
    assert look(run, records(silent="down")).seen.silent == "down"


def test_one_question_for_all_runs_that_are_open(run: RunLayout, tmp_path: Path) -> None:
    others = [make_run(tmp_path / name, job_name=f"{name}-1") for name in ("b", "c")]
    others[1].finished.write_text("{}")
    store.append(run, "submitted", job_id="5")
    store.append(run, "submitted", job_id="7")
    asked = Asked(records(job("8", name="b-1")))
    layouts = [run, *others]
    sights = observe.look([(each, store.load_plan(each)) for each in layouts], asked)
    assert asked.questions == [(("a-1", "b-1"), ("7",))]
    assert [sight.layout for sight in sights] == layouts
    assert [len(sight.seen.jobs or ()) for sight in sights] == [0, 1, 0]


def test_nobody_is_asked_about_runs_that_are_finished(run: RunLayout) -> None:
    run.finished.write_text("{}")
    asked = Asked(QueryError(["squeue"], returncode=1, stderr=""))
    (sight,) = observe.look([(run, store.load_plan(run))], asked)
    assert asked.questions == []
    assert sight.seen.finished


def test_what_else_is_seen(run: RunLayout) -> None:
    (run.attempts / "2").mkdir()
    sight = look(run, records())
    assert sight.seen.attempt is not None
    assert sight.seen.attempt.number == 2
    assert sight.seen.checkpoint_step is None
    assert abs(sight.seen.now - time.time()) < 60
    assert (sight.policy.max_no_progress, sight.policy.delay_s) == (3, 15)


@pytest.mark.parametrize(
    "text", ['{"by": "alice", "at": 1000.5}', "", "{", "{}", '{"at": null}', '{"at": "x"}', "[]"]
)
def test_a_cancel_mark_counts_however_it_was_written(run: RunLayout, text: str) -> None:
    assert look(run, records()).seen.cancelled_at is None
    run.cancelled.write_text(text)
    sight = look(run, records())
    cancelled_at = sight.seen.cancelled_at
    assert cancelled_at == 1000.5 if "1000.5" in text else cancelled_at is not None
    action = decide(sight.seen, sight.past, sight.policy)
    assert isinstance(action, Over)
    assert action.state == "cancelled"


# --- what was done, from the events -----------------------------------------------------------


def test_an_answered_submission() -> None:
    past = history(
        [
            {"kind": "created", "at": 1},
            {"kind": "submitting", "at": 2},
            {"kind": "submitted", "at": 3, "job_id": "7"},
        ]
    )
    assert (past.submitted, past.asked_at) == (("7",), None)


def test_a_submission_without_an_answer() -> None:
    past = history([{"kind": "submitting", "at": 2}])
    assert (past.submitted, past.asked_at) == ((), 2)


@pytest.mark.parametrize("end", ["submitted", "refused"])
def test_an_answer_is_an_answer(end: str) -> None:
    events: list[dict[str, Any]] = [
        {"kind": "submitting", "at": 2},
        {"kind": end, "job_id": "7", "what": "submit"},
    ]
    assert history(events).asked_at is None


def test_a_job_that_was_found_twice_was_submitted_once() -> None:
    events = [{"kind": "submitted", "job_id": i} for i in ("7", "8", "7", "8")]
    assert history(events).submitted == ("7", "8")


def test_restarts_and_their_checkpoints() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "restart", "cause": "preempted", "checkpoint_step": None},
        {"kind": "restart", "cause": "worker error", "checkpoint_step": 40},
    ]
    assert history(events).restarts == (
        Restarted("preempted", None),
        Restarted("worker error", 40),
    )


def test_a_restart_takes_a_run_up_again_that_was_given_up() -> None:
    gave_up = {"kind": "gave up", "cause": "worker error", "why": "three times"}
    assert history([gave_up]).gave_up
    assert not history([gave_up, {"kind": "restart", "cause": "by hand"}]).gave_up


def test_hurried_starts() -> None:
    event = {"kind": "start now", "job_id": "7", "restart": 1}
    assert history([event, event]).hurried == (("7", 1), ("7", 1))


@pytest.mark.parametrize("event", [{}, {"kind": "drill"}, {"kind": None}, {"kind": 7}, {"at": 1}])
def test_other_events_do_not_matter(event: dict[str, object]) -> None:
    assert history([event]) == history([])


def test_the_history_survives_the_disk(run: RunLayout) -> None:
    store.append(run, "submitting")
    store.append(run, "submitted", job_id="7")
    store.append(run, "restart", cause="preempted", checkpoint_step=3, why="\n")
    with run.events.open("a") as file:
        file.write('{"kind": "submi')
    past = look(run, records()).past
    assert past.submitted == ("7",)
    assert past.restarts == (Restarted("preempted", 3),)
    assert json.loads(run.events.read_text().splitlines()[0])["kind"] == "submitting"


# --- logs are read only where an end is to be decided on ----------------------------------------


@pytest.mark.parametrize(
    ("jobs", "changes", "read"),
    [
        ([JobState.FAILED], {}, True),
        ([], {}, True),
        ([JobState.RUNNING], {}, False),
        ([JobState.PENDING, JobState.FAILED], {}, False),
        ([], {"silent": "Connection refused"}, False),
        ([JobState.FAILED], {"finished": True}, False),
        ([JobState.FAILED], {"cancelled_at": 5.0}, False),
    ],
)
def test_whose_logs_are_read(jobs: list[JobState], changes: dict[str, Any], read: bool) -> None:
    what = seen(*(job(state=state) for state in jobs), attempt=attempt(), **changes)
    assert observe._to_be_judged(what, past()) is read
    over = Over("failed", "x", Cause.WORKER_ERROR)
    assert not observe._to_be_judged(what, past(gave_up=over))


def test_an_end_is_seen_with_its_evidence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama", job_name="llama-1")
    layout = run.attempt(1)
    layout.errors.mkdir(parents=True)
    layout.start.write_text('{"job_id": "7", "restart": 0, "nodes": "n[1-2]"}')
    run.output.write_text(
        "2026-11-29 22:00:00 fsdpq: attempt 1: job 7, restart 0, on n[1-2]\n"
        "srun: error: Node failure on n2\n"
    )
    asked = Asked(Answer((job("7", JobState.FAILED),)))
    (sight,) = observe.look([(run, store.load_plan(run))], asked)
    assert sight.seen.attempt is not None
    assert [f.kind for f in sight.seen.attempt.findings] == ["node-failure"]


@pytest.mark.parametrize(
    ("finished_ago", "stalled_ago", "found"),
    [(None, 5, True), (300, 10, True), (300, 400, False), (30, 10, False)],
)
def test_the_stall_of_a_finished_run_is_one_of_its_end(
    run: RunLayout, finished_ago: float | None, stalled_ago: float, found: bool
) -> None:
    """A rank whose process ends between two beats looks dead to the monitor for a moment."""
    now = time.time()
    for path, ago in ((run.finished, finished_ago), (run.stalled, stalled_ago)):
        if ago is not None:
            path.write_text("{}")
            os.utime(path, (now - ago, now - ago))
    assert look(run, records()).seen.stalled is found
