"""A script of the user's own with the lines that make it preemptible."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.runstore import store

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
from orchestrator import runtime

run = runtime.attach()
with runtime.guard(run):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo")
    steps, state = 12, {"total": torch.zeros(3)}
    checkpoint = run.resume()
    if checkpoint:
        dcp.load(state, checkpoint_id=checkpoint.path)
    for step in range(run.step + 1, steps + 1):
        state["total"] += step
        time.sleep(float(sys.argv[1]))
        run.heartbeat(step)
        notice = run.should_stop()
        if notice or step % 5 == 0 or step == steps:
            with run.checkpoint(step) as folder:
                dcp.save(state, checkpoint_id=folder)
        if notice and step < steps:
            run.stopped(step=step, reason=notice.signal)
            break
    else:
        assert state["total"][0] == steps * (steps + 1) / 2, state
        run.finished(step=steps)
    dist.barrier()
    dist.destroy_process_group()
"""


def start(folder: Path, step_s: float, **variables: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*launcher, "--nproc-per-node=2", "script.py", str(step_s)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("standalone", [True, False])
def test_stops_and_goes_on(tmp_path: Path, standalone: bool) -> None:
    """With a launcher's variables and without any: then ./fsdpq-run is the run directory."""
    root = tmp_path / "fsdpq-run"
    root.mkdir()
    fixed = {} if standalone else {"FSDPQ_RUN_DIR": str(root)}
    notice = tmp_path / "notice"

    def attempt(number: int, step_s: float) -> subprocess.Popen[str]:
        own = {} if standalone else {"FSDPQ_ATTEMPT": str(number)}
        return start(tmp_path, step_s, FSDPQ_NOTICE_FILE=str(notice), **fixed, **own)

    first = attempt(1, 0.2)
    progress = root / "attempts/1/progress.json"
    deadline = time.monotonic() + 200
    while "step" not in (store.read_json(progress) or {}) and time.monotonic() < deadline:
        time.sleep(0.02)
    notice.write_text("USR2\n")
    out, _ = first.communicate(timeout=200)
    assert first.returncode == 0, out
    status = json.loads((root / "attempts/1/status.json").read_text())
    assert status["outcome"] == "stopped"
    assert status["saved_step"] == status["step"] < 12
    notice.unlink()
    second = attempt(2, 0)
    out, _ = second.communicate(timeout=200)
    assert second.returncode == 0, out
    status = json.loads((root / "attempts/2/status.json").read_text())
    assert (status["outcome"], status["step"], status["saved_step"]) == ("finished", 12, 12)
