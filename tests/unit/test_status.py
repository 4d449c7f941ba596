"""What a run's files say of it, for its status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import report
from orchestrator.answers import status
from orchestrator.answers.status import last_line
from orchestrator.decide import Over, Wait
from orchestrator.judging.classify import Cause
from orchestrator.runstore import store
from orchestrator.scheduler import Answer
from orchestrator.watching import observe

from .builders import job, make_run
from .test_observe import Asked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ('{"step": 1}\n', {"step": 1}),
        ('{"step": 1}\n{"step": 2}\n', {"step": 2}),
        ('{"step": 1}\n{"step": 2}', {"step": 1}),  # still being written, or cut off
        ('{"step": 1}\n{"step"', {"step": 1}),
        ('{"step": 1}\n\n[]\n7\nnull\n', {"step": 1}),
        ("rubbish\n", {}),
        ('{"step": 1}', {}),
    ],
)
def test_the_last_whole_line(tmp_path: Path, text: str, found: dict[str, int]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    assert last_line(path) == found


def test_the_last_line_of_a_long_file_that_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' * 100_000 + b"\xff\xfe\n" + b'{"step": 2}\n\xff')
    assert last_line(path) == {"step": 2}


def test_no_metrics(tmp_path: Path) -> None:
    assert last_line(tmp_path / "metrics.jsonl") == {}


def test_the_status_of_a_run_on_the_disk(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama", job_name="llama-1")
    store.append(run, "submitting")
    asked_at = store.events(run)[0]["at"]
    folder = run.attempt(1)
    folder.root.mkdir()
    start = {"job_id": "7", "restart": 0, "nodes": "n1", "started_at": asked_at + 5}
    folder.start.write_text(json.dumps(start))
    folder.resume.write_text('{"step": 0}')
    run.metrics.write_text('{"attempt": 1, "step": 3, "loss": 2.5, "tokens_per_s": 9}\n')
    (sight,) = observe.look([(run, store.load_plan(run))], Asked(Answer((job(),))))
    found = status.of(sight, Wait("running", "job 7 is running"))
    assert (found.state, found.step, found.loss, found.tokens_per_s) == ("running", 3, 2.5, 9)
    assert found.attempts[0]["queued_s"] == 5.0
    assert found.attempts[0]["first_step"] == 1


def test_only_a_single_run_is_read_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama", job_name="llama-1")
    run.attempt(1).root.mkdir()
    start = {"job_id": "7", "restart": 0, "nodes": "n1", "started_at": 100}
    run.attempt(1).start.write_text(json.dumps(start))
    run.attempt(1).exit.write_text('{"action": "none", "ended_at": 200}')
    line = '{"attempt": 1, "step": %d, "step_s": 10, "at": %d}\n'
    run.metrics.write_text(line % (1, 120) + line % (2, 130) + "torn")
    run.saves.write_text('{"kind": "save", "attempt": 1, "blocked_s": 4, "at": 136}\n')
    (sight,) = observe.look([(run, store.load_plan(run))], Asked(Answer((job(),))))
    action = Wait("running", "job 7 is running")
    quick, whole = status.of(sight, action), status.of(sight, action, whole=True)
    assert (quick.step, quick.goodput) == (2, None)
    assert quick.attempts[0]["useful_s"] is None
    assert whole.attempts[0]["startup_s"] == 10
    # Nothing was published, so both steps will have to be done again.
    assert (whole.attempts[0]["lost_s"], whole.attempts[0]["saving_s"]) == (20, 4)


def test_why_slurm_started_a_job_again_is_read_for_a_single_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama", job_name="llama-1")
    log = ""
    for number, reason in ((1, "DUE TO PREEMPTION ***"), (2, "")):
        folder = run.attempt(number).root
        folder.mkdir()
        start = {"job_id": "7", "restart": number - 1, "nodes": "n[1-2]"}
        (folder / "start.json").write_text(json.dumps(start))
        log += (
            f"2026-11-29 22:00:00 fsdpq: attempt {number}: job 7, restart {number - 1}, on n[1-2]\n"
        )
        if reason:
            log += f"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:10:01 {reason}\n"
    run.output.write_text(log)
    asked = Asked(Answer((job("7", restart=1),)))
    (sight,) = observe.look([(run, store.load_plan(run))], asked)
    wait = Wait("running", "it runs")
    found = [status.of(sight, wait, whole=deep) for deep in (True, False)]
    causes = [[row["cause"] for row in item.attempts] for item in found]
    assert causes == [["preempted", None], ["put back by Slurm", None]]
    (given_up,) = observe.look([(run, store.load_plan(run))], Asked(Answer(())))
    over = Over("failed", "x", Cause.WORKER_ERROR)
    run.output.write_text(log + "srun: error: Node failure on n2\n")
    found = [status.of(given_up, over, whole=True)]
    assert found[0].error is None
    assert [row["state"] for row in found[0].attempts] == ["ended", "ended"]


def test_the_newest_validation_is_shown(tmp_path: Path) -> None:
    """A script of one's own may log anything under that name."""
    run = make_run(tmp_path / "llama", job_name="llama-1")
    run.attempt(1).root.mkdir()
    told = [
        {"step": 10, "loss": 3.5, "perplexity": 33.1},
        {"step": 20, "loss": 3.25},
        {"step": 30, "loss": None},
        "fine",
        7,
    ]
    lines = [{"attempt": 1, "step": step, "eval": value} for step, value in enumerate(told, 1)]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (sight,) = observe.look([(run, store.load_plan(run))], Asked(Answer((job(),))))
    action = Wait("running", "job 7 is running")
    assert status.of(sight, action).validation is None  # which reads one line alone
    found = status.of(sight, action, whole=True)
    assert found.to_json()["validation"] == {"step": 20, "loss": 3.25}
    assert "validation at step 20: loss 3.2500" in report.details(found)
