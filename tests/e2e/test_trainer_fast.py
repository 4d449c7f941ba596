"""With everything turned on: stopped, brought back, and the curve cannot tell.

One node's torchrun starts both ranks of the attempts; inductor compiles for the CPU.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_trainer import STEPS, Job, same_curve, write_text

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

FAST: dict[str, Any] = {
    "compile": True,
    "activation_checkpointing": "selective",
    "loss_chunks": 2,
    "prefetch": 1,
    "nonfinite": "skip",
}


def job(folder: Path, name: str) -> Job:
    made = Job(folder / name)
    made.configure(**FAST)
    return made


def start(job: Job, attempt: int, cache: Path) -> Any:
    return job.start(attempt, TORCHINDUCTOR_CACHE_DIR=str(cache), TORCHINDUCTOR_COMPILE_THREADS="1")


def finish(process: Any) -> str:
    out: str = process.communicate(timeout=500)[0]
    assert process.returncode == 0, out
    return out


def test_resumed_bit_for_bit_and_compiled_once(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    stopped, straight = job(tmp_path, "stopped"), job(tmp_path, "straight")
    try:
        one, other = tmp_path / "inductor-1", tmp_path / "inductor-2"  # as on two nodes
        first = start(stopped, 1, one)
        stopped.wait_for_step(3, first)
        stopped.notice(1).write_text("USR2\n")
        assert "0 of them found in a cache" in finish(first)
        assert len(list((stopped.root / "compiled").iterdir())) == 2
        assert "0 of them found in a cache" not in finish(start(stopped, 2, other))
        finish(start(straight, 1, one))  # no third compilation, which takes a minute
        assert len(stopped.lines()) == STEPS
        assert {line["attempt"] for line in stopped.lines()} == {1, 2}
        same_curve(stopped, straight)
    finally:
        for process in [*stopped.started, *straight.started]:
            process.kill()
            process.communicate()
    line = straight.lines()[-1]
    assert line["tokens_per_s_per_gpu"] == line["tokens_per_s"] / 2
    assert 0 <= line["data_wait_s"] < line["step_s"]
    assert line["skipped"] == 0
    assert (line["mfu"], line["peak_memory_gib"]) == (None, None)
