"""What the files of a run tell of its attempts, whole, torn or missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.evidence import reading
from orchestrator.judging.classify import Cause, past_verdict
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import facts

from .builders import make_run

START = {"job_id": "7", "restart": 2, "nodes": "n[1-2]", "pid": 5, "started_at": 1000}


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return make_run(tmp_path / "llama")


def attempt(run: RunLayout, number: int = 1, **files: Any) -> AttemptLayout:
    """Make the folder of an attempt with these JSON files."""
    layout = run.attempt(number)
    layout.errors.mkdir(parents=True)
    for name, data in files.items():
        (layout.root / f"{name}.json").write_text(json.dumps(data))
    return layout


def error(layout: AttemptLayout, rank: int, exception: str, at: float = 1.0) -> None:
    data = {"rank": rank, "node": f"n{rank}", "step": 41, "exception": exception, "at": at}
    (layout.errors / f"rank-{rank}.json").write_text(json.dumps(data))


def test_no_attempts(run: RunLayout, tmp_path: Path) -> None:
    assert facts.attempts(run) == []
    assert facts.latest(run) is None
    assert facts.attempts(RunLayout(tmp_path / "nowhere")) == []


def test_an_attempt_that_only_has_a_folder(run: RunLayout) -> None:
    run.attempt(1).root.mkdir()
    (found,) = facts.attempts(run)
    assert found == facts.latest(run)
    assert (found.number, found.job_id, found.restart, found.nodes) == (1, "", 0, "")
    assert found.started_at is found.ended_at is found.resumed is found.last_step is None
    assert (found.outcome, found.action, found.noticed, found.error) == ("", "", False, None)


def test_an_attempt_that_stopped_and_saved(run: RunLayout) -> None:
    layout = attempt(
        run,
        start=START,
        resume={"step": 30, "quarantined": []},
        progress={"step": 41, "at": 1100.5},
        status={
            "outcome": "stopped",
            "step": 42,
            "saved_step": 42,
            "first_step": 30,
            "reason": "r",
        },
        exit={"code": 0, "action": "requeue", "why": "stopped for a notice", "ended_at": 1110},
    )
    (layout.root / "notice.0").touch()
    (found,) = facts.attempts(run)
    assert (found.job_id, found.restart, found.nodes) == ("7", 2, "n[1-2]")
    assert (found.started_at, found.ended_at, found.heard_at) == (1000, 1110, 1100.5)
    assert (found.resumed, found.last_step, found.saved_step) == (30, 42, 42)
    assert (found.outcome, found.action, found.why) == (
        "stopped",
        "requeue",
        "stopped for a notice",
    )
    assert found.noticed


@pytest.mark.parametrize(
    ("files", "resumed", "last"),
    [
        ({}, None, None),
        ({"resume": {"step": 30}}, 30, None),
        ({"resume": {"step": None}}, 0, None),  # it started anew
        ({"status": {"first_step": 12, "step": 15}}, 12, 15),
        ({"resume": {"step": 30}, "progress": {"step": 41}}, 30, 41),
        ({"progress": {"step": 41}, "status": {"step": 43}}, None, 43),
        ({"progress": {"step": 44}, "status": {"step": 43}}, None, 44),
        ({"status": {"step": None}, "progress": {}}, None, None),
        ({"status": {"step": 0}}, None, 0),
    ],
)
def test_where_it_started_and_how_far_it_came(
    run: RunLayout, files: dict[str, Any], resumed: int | None, last: int | None
) -> None:
    attempt(run, **files)
    (found,) = facts.attempts(run)
    assert (found.resumed, found.last_step) == (resumed, last)


def test_metrics_know_steps_that_the_attempt_had_no_time_to_tell(run: RunLayout) -> None:
    for number in (1, 2, 3):
        attempt(run, number, start=START, progress={"step": 3})
    lines = [
        {"attempt": 1, "step": 10},
        {"attempt": 1, "step": 11},
        {"attempt": 2, "step": 8},
        {"attempt": 2, "step": 7},
        {"step": 99},
        {"attempt": "3", "step": 50},
        {"attempt": 3, "step": 2},
    ]
    torn = '{"attempt": 3, "step": 1000'
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    assert [a.last_step for a in facts.attempts(run)] == [11, 8, 3]
    newest = facts.latest(run)
    assert newest is not None
    assert newest.number == 3


def test_attempts_are_numbers_and_in_order(run: RunLayout) -> None:
    for number in (10, 9, 1):
        attempt(run, number)
    for name in ("x", "2.tmp", "-3", ".4"):
        (run.attempts / name).mkdir()
    assert [a.number for a in facts.attempts(run)] == [1, 9, 10]
    newest = facts.latest(run)
    assert newest is not None
    assert newest.number == 10


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "\x00", '{"job_id": "7", "rest'])
def test_torn_files_tell_nothing_and_break_nothing(run: RunLayout, text: str) -> None:
    layout = attempt(run)
    for name in ("start", "exit", "status", "resume", "progress", "errors/rank-0"):
        (layout.root / f"{name}.json").write_text(text)
    (found,) = facts.attempts(run)
    assert (found.job_id, found.outcome, found.last_step, found.error) == ("", "", None, None)


def test_the_end_is_the_batch_shells_or_the_workers(run: RunLayout) -> None:
    attempt(run, 1, status={"at": 50.0})
    attempt(run, 2, status={"at": 50.0}, exit={"ended_at": 60})
    assert [a.ended_at for a in facts.attempts(run)] == [50.0, 60]


def test_quarantined_checkpoints(run: RunLayout) -> None:
    bad = [{"step": 20, "reason": "a is missing", "path": "x"}, {"reason": "?"}, {}]
    attempt(run, resume={"step": 10, "quarantined": bad})
    (found,) = facts.attempts(run)
    assert found.quarantined == ((20, "a is missing"), (0, "?"), (0, ""))


# --- which rank was first ---------------------------------------------------------------------


def first_error(run: RunLayout) -> tuple[int | None, str]:
    (found,) = facts.attempts(run)
    assert found.error is not None
    return found.error.rank, found.error.exception


def test_the_earliest_error_is_the_cause(run: RunLayout) -> None:
    layout = attempt(run)
    error(layout, 0, "ValueError: late", at=9.0)
    error(layout, 3, "ValueError: bad batch", at=5.0)
    error(layout, 10, "ValueError: later", at=7.0)
    assert first_error(run) == (3, "ValueError: bad batch")


@pytest.mark.parametrize(
    "echo",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:9",
        "RuntimeError: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited",
        "RuntimeError: ncclRemoteError: A call failed possibly due to a network error",
    ],
)
def test_an_echo_of_anothers_end_is_no_cause(run: RunLayout, echo: str) -> None:
    layout = attempt(run)
    error(layout, 0, echo, at=1.0)
    error(layout, 3, "ValueError: bad batch", at=5.0)
    assert first_error(run) == (3, "ValueError: bad batch")


def test_echoes_alone_are_better_than_nothing(run: RunLayout) -> None:
    layout = attempt(run)
    error(layout, 1, "RuntimeError: Connection closed by peer", at=2.0)
    error(layout, 0, "BrokenPipeError: Broken pipe", at=1.0)
    assert first_error(run) == (0, "BrokenPipeError: Broken pipe")


def test_an_error_file_with_gaps(run: RunLayout) -> None:
    layout = attempt(run)
    (layout.errors / "rank-5.json").write_text('{"at": null}')
    (layout.errors / "node-0.json").write_text('{"message": {}}')
    (found,) = facts.attempts(run)
    assert found.error is not None
    assert (found.error.rank, found.error.exception, found.error.at) == (None, "", 0.0)


@pytest.mark.parametrize("value", [None, "text", [1], {"a": 1}, True, 1e300, -1e300])
def test_values_of_another_type_are_none(run: RunLayout, value: object) -> None:
    layout = run.attempt(1)
    layout.errors.mkdir(parents=True)
    keys: tuple[str, ...] = (
        "restart",
        "started_at",
        "step",
        "first_step",
        "saved_step",
        "at",
        "quarantined",
    )
    keys += ("job_id", "nodes", "outcome", "action", "ended_at", "rank", "node", "exception")
    text = json.dumps(dict.fromkeys(keys, value))
    files = (layout.start, layout.exit, layout.status, layout.resume, layout.progress)
    for path in (*files, layout.errors / "rank-0.json"):
        path.write_text(text)
    found = facts.attempts(run)[0]
    assert found.restart == 0
    assert (found.started_at, found.ended_at, found.last_step) == (None, None, None)
    assert found.quarantined == ()


def test_logs_that_cannot_be_read_tell_nothing(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(116, "Stale file handle")

    attempt(run, start=START)
    monkeypatch.setattr(reading, "read", fail)
    (found,) = facts.attempts(run)
    assert facts.ended(run, found) == found


def test_the_newest_bandwidth_that_was_measured(run: RunLayout) -> None:
    assert facts.bandwidth(run) is None
    attempt(run, 1, bandwidth={"ranks": 8, "complete": True})
    attempt(run, 2, bandwidth={"ranks": 16})
    attempt(run, 3)
    found = facts.bandwidth(run)
    assert found is not None
    assert (found.ranks, found.complete) == (16, False)
    run.attempt(3).bandwidth.write_text('{"ranks": 24')
    assert facts.bandwidth(run) == found


def test_nodes_that_the_cloud_takes_back(run: RunLayout) -> None:
    """Known by the name that Slurm has for them; any other content tells nothing."""
    files = run.attempt(1)
    files.reclaims.mkdir(parents=True)
    files.start.write_text('{"job_id": "7", "nodes": "n[1-2]"}')
    (files.reclaims / "node-1.json").write_text('{"node": "n2.cluster.local"}')
    (files.reclaims / "node-0.json").write_text('{"node": 5}')
    (files.reclaims / "node-2.json").write_text('{"node": "elsewhere"}')
    found = facts.one(run, 1)
    assert found is not None
    assert found.reclaimed == ("n2",)
    assert past_verdict(found).suspects == ("n2",)
    files.status.write_text('{"outcome": "stopped", "step": 3, "saved_step": 3}')
    stopped = facts.one(run, 1)
    assert stopped is not None
    verdict = past_verdict(stopped)
    assert (verdict.cause, verdict.suspects) == (Cause.NOTICE, ("n2",))
