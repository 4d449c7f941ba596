"""Damaged checkpoints, changed models and errors: nothing that breaks is passed over in silence."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.checkpoint import describe_files, list_checkpoints

from .trainings import STEPS, TRAIN, Job, MakeJob, same_curve

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

# --- damaged checkpoints ----------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_damaged_checkpoints_fall_back(half: Job, whole: Job) -> None:
    shutil.copytree(whole.checkpoints / "step-12", half.checkpoints / "step-12")
    (half.checkpoints / "step-12" / "manifest.json").unlink()
    flip(half.checkpoints / "step-8" / "__1_0.distcp")
    half.run(2)
    resumed = half.read("attempts/2/resume.json")
    assert resumed["step"] == 4
    assert [item["step"] for item in resumed["quarantined"]] == [12, 8]
    reasons = [item["reason"] for item in resumed["quarantined"]]
    assert reasons[0] == "no manifest: the save was cut off"
    assert "hash differs" in reasons[1]
    assert all(Path(item["path"]).is_dir() for item in resumed["quarantined"])
    same_curve(half, whole, steps=range(5, STEPS + 1))


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (flip, "__1_0.distcp", "hash differs"),
        (flip, ".metadata", "hash differs"),
        (truncate, "__0_0.distcp", "bytes instead of"),
        (Path.unlink, "manifest.json", "no manifest: the save was cut off"),
        (Path.unlink, ".metadata", ".metadata is missing"),
        (Path.unlink, "__0_0.distcp", "__0_0.distcp is missing"),
    ],
)
def test_damage_is_found(half: Job, damage: Callable[[Path], None], file: str, reason: str) -> None:
    damage(half.checkpoints / "step-8" / file)
    newest, elder = list_checkpoints(half.checkpoints, verify=True)
    assert reason in newest.reason
    assert elder.complete


def test_verified_checkpoint_that_does_not_load(half: Job, whole: Job) -> None:
    """Whole files, wrong contents: only loading tells. Its elder loads, so it is set aside."""
    newest = half.checkpoints / "step-8"
    (newest / ".metadata").write_bytes(b"no pickle")
    describe_anew(newest)
    half.run(2)
    resumed = half.read("attempts/2/resume.json")
    assert resumed["step"] == 4
    assert [item["step"] for item in resumed["quarantined"]] == [8]
    same_curve(half, whole, steps=range(5, STEPS + 1))


def describe_anew(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in describe_files(folder, manifest["files"]).items():
        manifest["files"][name] = {"size": entry.size, "sha256": entry.sha256}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_another_model_costs_no_checkpoint(half: Job) -> None:
    config = {**TRAIN["model"]["config"], "num_hidden_layers": 3}
    half.configure(model={"config": config})
    half.run(2, code=1)
    assert half.status(2)["outcome"] == "failed"
    assert "num_hidden_layers was 2 and is 3" in half.status(2)["reason"]
    left = sorted(path.name for path in half.checkpoints.glob("step*"))
    assert left == ["step-4", "step-8"]


def test_nothing_usable_is_an_error(half: Job) -> None:
    for step in (4, 8):
        flip(half.checkpoints / f"step-{step}" / "__0_0.distcp")
    half.run(2, code=1)
    assert half.status(2)["outcome"] == "no_checkpoint"
    assert half.lines() == []


def test_changed_text_is_an_error(half: Job) -> None:
    (half.root.parent / "text" / "c.txt").write_text("more")
    half.run(2, code=1)
    assert "sources, their weights or seq_len changed after step 8" in half.status(2)["reason"]
    assert (half.checkpoints / "step-8").is_dir()


# --- errors -----------------------------------------------------------------------------------

RAISING = """
import os, sys
from orchestrator import runtime
run = runtime.attach()
with runtime.guard(run):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    run.resume()
    if run.env.rank == 1:
        run.heartbeat(3)
        raise BaseException("on purpose")
    dist.all_reduce(torch.ones(1))  # the other waits here
"""


def test_one_rank_that_raises_hangs_nobody(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    (tmp_path / "raising.py").write_text(RAISING)
    job.run(1, code=1, program=str(tmp_path / "raising.py"))
    ended = time.time()
    error = job.read("attempts/1/errors/rank-1.json")
    assert error["exception"] == "BaseException: on purpose"
    assert (error["rank"], error["local_rank"], error["step"]) == (1, 1, 3)
    assert ended - error["at"] < 25  # a stuck survivor would cost torchrun's 30 s
    status = job.status(1)
    assert (status["outcome"], status["rank"]) == ("failed", 1)
    assert "on purpose" in status["reason"]


def test_batch_that_does_not_fit_is_said_at_once(make_job: MakeJob) -> None:
    job = make_job(global_batch=7, micro_batch=1)
    job.run(1, code=1)
    assert "global_batch 6 or 8" in job.status(1)["reason"]
