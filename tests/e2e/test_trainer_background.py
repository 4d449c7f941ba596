"""The trainer with saves in the background: not a bit differs from one that waits for each save."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.checkpoint import list_checkpoints

from .test_trainer import Job, MakeJob, make_job, same_curve, wait_until_gone, whole

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

__all__ = ["make_job", "whole"]

CHECKPOINT: dict[str, Any] = {"mode": "async", "every_steps": 2, "keep_last": 9}


def saves(job: Job) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (job.root / "saves.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "save"]


def test_bit_for_bit_after_a_kill_and_a_notice(make_job: MakeJob, whole: Job) -> None:
    job = make_job(checkpoint=CHECKPOINT)
    process = job.start(1)
    job.wait_for_step(6, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    process = job.start(2)
    job.wait_for_step(9, process)
    job.notice(2).write_text("USR2 1732900000\n")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    resumed, stopped = job.read("attempts/2/resume.json")["step"], job.status(2)
    assert resumed >= 2  # by a save in the background: no other was made before the kill
    assert stopped["saved_step"] == stopped["step"]
    if stopped["outcome"] == "stopped":
        job.run(3)
    same_curve(job, whole)
    assert all(found.complete for found in list_checkpoints(job.checkpoints, verify=True))
    assert {line["blocking"] for line in saves(job)} == {True, False}
    assert all(line["blocked_s"] <= line["seconds"] for line in saves(job) if line["blocking"])
    told = [line["save"]["step"] for line in job.lines() if "save" in line]
    assert set(told) <= {line["step"] for line in saves(job)}
    assert told
    startup = job.read("attempts/2/startup.json")
    parts = ("import_s", "connect_s", "resume_s", "build_s", "load_s", "first_step_s")
    assert startup["total_s"] == pytest.approx(sum(startup[part] for part in parts), abs=0.01)
