"""An interrupted training goes on as if it had not been interrupted."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .trainings import SAMPLES_PER_STEP, STEPS, TRAIN, Job, MakeJob, same_curve, wait_until_gone

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

# --- going on ---------------------------------------------------------------------------------


def close_curve(a: Job, b: Job, *, steps: range = range(1, STEPS + 1)) -> None:
    found, wanted = a.curve(), b.curve()
    for step in steps:
        assert found[step]["samples"] == wanted[step]["samples"]
        assert found[step]["lr"] == wanted[step]["lr"]
        for key in ("loss", "grad_norm"):
            assert math.isclose(found[step][key], wanted[step][key], rel_tol=1e-4), (step, key)


def test_uninterrupted(whole: Job) -> None:
    lines = whole.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["samples"] for line in lines] == [
        [n * SAMPLES_PER_STEP, SAMPLES_PER_STEP] for n in range(STEPS)
    ]
    status = whole.status(1)
    assert (status["outcome"], status["step"], status["saved_step"]) == ("finished", 12, 12)
    assert whole.read("finished.json")["step"] == STEPS
    left = sorted(path.name for path in whole.checkpoints.iterdir())
    assert left == ["LATEST", "step-12", "step-4", "step-8"]
    assert not (whole.root / "attempts/1/errors").exists()


def test_stopped_run_goes_on_bit_for_bit(make_job: MakeJob, whole: Job) -> None:
    job = make_job()
    process = job.start(1)
    job.wait_for_step(5, process)
    job.notice(1).write_text("USR2 1732900000\n")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    status = job.status(1)
    assert status["outcome"] == "stopped"
    assert status["saved_step"] == status["step"] == len(job.lines())
    assert 5 <= status["step"] < STEPS
    assert status["progress"] is True
    job.run(2)
    assert job.read("attempts/2/resume.json")["step"] == status["step"]
    assert len(job.lines()) == STEPS  # no step was lost, none done twice
    assert {line["attempt"] for line in job.lines()} == {1, 2}
    same_curve(job, whole)
    assert "already" not in job.run(3)  # finished: ends at once
    assert not (job.root / "attempts/3/status.json").exists()


def test_signal_to_one_worker_stops_all(make_job: MakeJob) -> None:
    job = make_job(steps=100000)
    process = job.start(1)
    job.wait_for_step(2, process)
    os.kill(children(process.pid)[-1], signal.SIGUSR2)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    status = job.status(1)
    assert status["reason"].startswith("USR2")
    assert status["saved_step"] == status["step"] == len(job.lines())


def test_killed_run_repeats_its_lost_steps(make_job: MakeJob, whole: Job) -> None:
    job = make_job()
    process = job.start(1)
    job.wait_for_step(6, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    done = len(job.lines())
    job.run(2)
    resumed = job.read("attempts/2/resume.json")["step"]
    assert resumed in (4, 8)
    assert len(job.lines()) == done + STEPS - resumed
    same_curve(job, whole)


def test_saving_when_it_is_worth_it_changes_no_bit(make_job: MakeJob, whole: Job) -> None:
    """`every_steps: auto`: the clock decides when to save, and the curve cannot tell."""
    job = make_job(checkpoint={"every_steps": "auto", "max_interval_s": 0.01, "keep_last": 9})
    process = job.start(1)
    job.wait_for_step(6, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    job.run(2)
    resumed = job.read("attempts/2/resume.json")["step"]
    assert resumed >= 4  # with 500 steps or an hour between saves there would be nothing
    same_curve(job, whole)
    written = [json.loads(line) for line in (job.root / "saves.jsonl").read_text().splitlines()]
    saves = [line for line in written if line["kind"] == "save"]
    # The first step of an attempt is when rank 0 starts to look at the clock. What the kill cut
    # off may be a line of this file.
    one, two = ([s["step"] for s in saves if s["attempt"] == n] for n in (1, 2))
    assert one in ([*range(2, resumed + 1)], [*range(2, resumed)])
    assert two == [*range(resumed + 2, STEPS + 1)]
    assert {line["steps"] for line in written if line["kind"] == "interval"} == {1}
    assert (saves[-2]["reason"], saves[-1]["reason"]) == ("interval", "end")


def test_other_numbers_of_ranks(make_job: MakeJob) -> None:
    # Without dropout: which rank draws which mask does depend on their number.
    straight = make_job("straight", model=still())
    straight.run(1, workers=2)
    job = make_job("changed", model=still())
    for attempt, workers, stop_at in ((1, 1, 3), (2, 2, 7)):
        process = job.start(attempt, workers=workers)
        job.wait_for_step(stop_at, process)
        job.notice(attempt).write_text("USR2\n")
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
    job.run(3, workers=1)
    assert [line["step"] for line in job.lines()] == list(range(1, STEPS + 1))
    assert [line["world_size"] for line in job.lines()[:: STEPS - 1]] == [1, 1]
    assert 2 in {line["world_size"] for line in job.lines()}
    close_curve(job, straight)


def still() -> dict[str, Any]:
    return {"config": {**TRAIN["model"]["config"], "attention_dropout": 0.0}}


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


# --- stopping early ---------------------------------------------------------------------------


def test_notice_during_start_up(half: Job) -> None:
    half.notice(2).write_text("USR2\n")
    half.run(2)
    status = half.status(2)
    assert status["outcome"] == "stopped"
    assert status["progress"] is False
    assert (status["first_step"], status["step"], status["saved_step"]) == (8, 8, 8)
    assert half.lines() == []


def test_notice_during_the_first_start_up(make_job: MakeJob) -> None:
    job = make_job()
    job.notice(1).write_text("TERM\n")
    job.run(1)
    status = job.status(1)
    assert (status["outcome"], status["step"], status["saved_step"]) == ("stopped", 0, None)
    assert not job.checkpoints.exists()
    assert job.lines() == []
