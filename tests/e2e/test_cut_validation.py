"""A notice in the middle of a validation: the next attempt measures with the very same weights."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.spec.train import TrainSpec
from tests.e2e.family_models import LLAMA
from tests.e2e.ranks import ROOT

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e


def train(run: Path, *cuts: int) -> list[dict[str, Any]]:
    """Return the lines of the metrics after one attempt for each of ``cuts``."""
    (run / "attempts").mkdir(parents=True)
    (run / "text").write_text("".join(f"{n} cubed is {n**3}.\n" for n in range(100)))
    source = {"text_files": [str(run / "text")]}
    spec = {
        "model": {"config": LLAMA},
        "data": {**source, "seq_len": 16},
        "eval": {**source, "every": 2, "batches": 2},
        "steps": 5,
        "global_batch": 4,
        "micro_batch": 2,
        "precision": "fp32",
    }
    (run / "train.json").write_text(TrainSpec.model_validate(spec).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.cut_program", str(run), *map(str, cuts)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def curve(lines: list[dict[str, Any]]) -> dict[int, Any]:
    """Return losses of each step, of training and validation."""
    return {
        line["step"]: (line["loss"], line["grad_norm"], (line.get("eval") or {}).get("loss"))
        for line in lines
    }


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_it_is_made_up_for(tmp_path: Path, cut: int) -> None:
    wanted = curve(train(tmp_path / "alone", 0))
    assert [step for step, (*_, loss) in wanted.items() if loss] == [2, 4, 5]
    lines = train(tmp_path / "cut", cut, 0)
    assert curve(lines) == wanted
    at = [2, 4, 5][cut - 1]
    # The step is not told as done again: it keeps its attempt, and took no more time.
    assert [line["attempt"] for line in lines if line["step"] == at] == [1, 1]
    assert [line["step_s"] > 0 for line in lines if line["step"] == at] == [True, False]
    status = json.loads((tmp_path / "cut/attempts/1/status.json").read_text())
    assert (status["outcome"], status["saved_step"]) == ("stopped", at)
    assert json.loads((tmp_path / "cut/finished.json").read_text())["attempt"] == 2
