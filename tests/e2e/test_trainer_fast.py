"""With everything turned on: killed, brought back, and the curve cannot tell.

One node's torchrun starts both ranks of the attempts; inductor compiles for the CPU, which takes
most of a minute, so one interrupted run and one left alone serve all that is looked at here.
"""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint import list_checkpoints
from tests.e2e.trainings import STEPS, TRAIN, Job, same_curve, wait_until_gone, write_text

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# Embedding and head are one matrix. Without dropout, since compiled code draws other numbers.
MODEL = {
    "config": {
        **TRAIN["model"]["config"],
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
    }
}
FAST: dict[str, Any] = {
    "model": MODEL,
    "compile": True,
    "activation_checkpointing": "selective",
    "loss_chunks": 2,
    "prefetch": 1,
    "nonfinite": "skip",
}
BEHIND = {"mode": "async", "every_steps": 2, "keep_last": 9}


@dataclass(frozen=True)
class Runs:
    """What was run, once for all tests.

    Attributes:
        killed: With everything on and saves in the background; killed once.
        straight: The same with saves that block; left alone.
        plain: With nothing on; left alone.
        said: What the attempts of the first one and the second one printed.
    """

    killed: Job
    straight: Job
    plain: Job
    said: tuple[str, str, str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("fast")
    write_text(folder / "text")
    killed, straight, plain = (Job(folder / name) for name in ("killed", "straight", "plain"))
    killed.configure(**FAST, checkpoint=BEHIND)
    straight.configure(**FAST)
    plain.configure(model=MODEL)
    one, other = folder / "inductor-1", folder / "inductor-2"  # as on two nodes
    try:
        process = start(killed, 1, one)
        killed.wait_for_step(6, process)
        process.kill()
        first = process.communicate(timeout=300)[0]
        wait_until_gone(killed)
        # What the C++ compiler made is left to the second one: it takes longest, and is no part of
        # what an attempt hands on. On GPUs there is none of it.
        shutil.copytree(one, other, ignore=shutil.ignore_patterns("fxgraph", "aotautograd"))
        second = finish(start(killed, 2, other))
        third = finish(start(straight, 1, one))
        finish(start(plain, 1, one))
        yield Runs(killed, straight, plain, (first, second, third))
    finally:
        for process in [*killed.started, *straight.started, *plain.started]:
            process.kill()
            process.communicate()


def start(job: Job, attempt: int, cache: Path) -> Any:
    return job.start(attempt, TORCHINDUCTOR_CACHE_DIR=str(cache), TORCHINDUCTOR_COMPILE_THREADS="1")


def finish(process: Any) -> str:
    out: str = process.communicate(timeout=500)[0]
    assert process.returncode == 0, out
    return out


def saves(job: Job) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (job.root / "saves.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "save"]


def test_resumed_bit_for_bit(runs: Runs) -> None:
    assert {line["attempt"] for line in runs.killed.lines()} == {1, 2}
    same_curve(runs.killed, runs.straight)


def test_the_same_as_with_nothing_on(runs: Runs) -> None:
    found, wanted = runs.straight.curve(), runs.plain.curve()
    for step in range(1, STEPS + 1):
        for key in ("loss", "grad_norm"):
            assert math.isclose(found[step][key], wanted[step][key], rel_tol=1e-5), (step, key)
        assert found[step]["samples"] == wanted[step]["samples"]


def test_compiled_once(runs: Runs) -> None:
    first, second, _ = runs.said
    assert "0 of them found in a cache" in first
    assert "compiled" in second
    assert "0 of them found in a cache" not in second
    assert len(list((runs.killed.root / "compiled").iterdir())) == 2


def test_saved_behind_the_training(runs: Runs) -> None:
    job = runs.killed
    # By a save in the background: no other was made before the kill.
    assert job.read("attempts/2/resume.json")["step"] >= 2
    found = list_checkpoints(job.checkpoints, verify=True)
    assert all(one.complete for one in found)
    assert max(one.step for one in found) == STEPS
    assert {line["blocking"] for line in saves(job)} == {True, False}
    assert {line["blocking"] for line in saves(runs.straight)} == {True}


def test_metrics_of_saves_and_speed(runs: Runs) -> None:
    told = [line["save"] for line in runs.killed.lines() if "save" in line]
    assert told
    assert {one["step"] for one in told} <= {line["step"] for line in saves(runs.killed)}
    assert all(one["bytes"] > 0 and one["blocked_s"] <= one["seconds"] for one in told)
    for line in (runs.killed.lines()[-1], runs.straight.lines()[-1]):
        assert line["tokens_per_s_per_gpu"] == line["tokens_per_s"] / 2
        assert 0 <= line["data_wait_s"] < line["step_s"]
        assert line["skipped"] == 0
        assert (line["mfu"], line["peak_memory_gib"]) == (None, None)


def test_what_the_start_took(runs: Runs) -> None:
    startup = runs.killed.read("attempts/2/startup.json")
    parts = ("import", "connect", "data", "resume", "caches", "build", "load", "first_step")
    assert startup["total_s"] == pytest.approx(sum(startup[f"{part}_s"] for part in parts), abs=0.1)
