"""Runs on JSON lines, shards and texts, mixed, packed and evaluated, that are interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.tokens.index import read_index

from .trainings import STEPS, Job, MakeJob

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e


def write_lines(path: Path, count: int = 200) -> None:
    rows = [{"text": f"{n} and {n} make {2 * n}."} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def configure(job: Job) -> None:
    """Two weighted sources, one of which has to be made ready; documents; a validation set."""
    folder = job.root.parent
    if not (folder / "lines.jsonl").exists():
        write_lines(folder / "lines.jsonl")
    config = json.loads((job.root / "train.json").read_text())
    config["data"] = {
        "seq_len": 16,
        "packing": "documents",
        "sources": [
            {"jsonl": [str(folder / "lines.jsonl")], "weight": 3},
            {"text_files": [str(folder / "text")], "weight": 1},
        ],
    }
    config["eval"] = {"text_files": [str(folder / "text/a.txt")], "every": 4, "batches": 2}
    (job.root / "train.json").write_text(json.dumps(config))


def curve(job: Job) -> list[Any]:
    lines = [line for _, line in sorted(job.curve().items())]
    return [
        (
            line["step"],
            line["loss"],
            line["samples"],
            {**line["eval"], "seconds": 0} if "eval" in line else None,
        )
        for line in lines
    ]


@pytest.mark.long
def test_interrupted_runs_cannot_be_told_and_changed_texts_are_refused(
    make_job: MakeJob, tmp_path: Path
) -> None:
    straight = make_job("straight")
    configure(straight)
    straight.run(1)
    assert read_index(straight.root / "data/train-0").documents == 200
    assert [step for step, *_, seen in curve(straight) if seen] == [4, 8, 12]
    assert all(line["data_wait_s"] >= 0 for line in straight.lines())

    job = make_job("job")
    configure(job)
    process = job.start(1)
    job.wait_for_step(5, process)
    job.notice(1).write_text("USR2 1732900000\n")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    made = (job.root / "data/train-0/index.json").stat().st_mtime_ns
    if job.status(1)["step"] < STEPS:
        refused(job, 2, tmp_path / "text/a.txt")
    job.run(3)
    assert (job.root / "data/train-0/index.json").stat().st_mtime_ns == made
    assert curve(job) == curve(straight)
    assert len(job.lines()) == STEPS


def refused(job: Job, attempt: int, path: Path) -> None:
    """See that a changed source ends an attempt with its name, then put it back."""
    before = path.read_text()
    path.write_text(before[:-1] + "!")  # of the same length
    out = job.run(attempt, code=1)
    path.write_text(before)
    assert f"SpecError: train.data: {path} has other contents after step" in out
    assert "samples would be repeated or left out" in out


def test_a_file_is_named_though_no_block_of_it_shows_the_change(tmp_path: Path) -> None:
    from orchestrator.trainer.sources import remember, what_changed

    (tmp_path / "a.txt").write_bytes(bytes(100_000))
    corpus = SimpleNamespace(sources=(tmp_path / "a.txt",))
    run = SimpleNamespace(env=SimpleNamespace(run=SimpleNamespace(data=tmp_path / "data")))
    remember(cast(Any, run), cast(Any, corpus))
    assert what_changed(cast(Any, run), cast(Any, corpus)) == ""
    with (tmp_path / "a.txt").open("r+b") as file:
        file.seek(8000)  # between the blocks that are looked at
        file.write(b"other")
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert what_changed(cast(Any, run), cast(Any, corpus)) == f"{tmp_path}/a.txt was written to"
    (tmp_path / "data/inputs.json").write_text("[" * 100_000)
    assert what_changed(cast(Any, run), cast(Any, corpus)) == ""
