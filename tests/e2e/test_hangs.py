"""A rank that hangs inside a step, with torch: stacks of all ranks, and the name of the one."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from orchestrator.monitor.beats import Beats
from orchestrator.rundir.attempt import Hang
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SCRIPT = """
import time
from orchestrator import runtime
run = runtime.attach()
import torch
import torch.distributed as dist
dist.init_process_group("gloo")

def load_batch(step):
    while step == 6 and run.env.rank == 1:
        time.sleep(60)

def train_step(step):
    load_batch(step)
    gradient = torch.ones(8)
    dist.all_reduce(gradient)

run.resume()
for step in range(1, 100):
    train_step(step)
    run.heartbeat(step)
    run.should_stop()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(folder: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, folder / "train.py"],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "FSDPQ_RUN_DIR": str(folder),
            "FSDPQ_ATTEMPT": "1",
            "FSDPQ_LOCAL_DIR": str(folder / "local"),
            "FSDPQ_HANG": "min_s=2,start_s=60,save_s=60",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / "attempts/1/nccl/flight-recorder-rank-"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        },
    )


def test_a_rank_that_hangs_in_its_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "local").mkdir()
    attempt = RunLayout(tmp_path).attempt(1)
    port = free_port()
    children = [start(tmp_path, rank, port) for rank in range(2)]
    duty = Beats(attempt=attempt.root, local_dir=tmp_path / "local", number=0, node="n1")
    recorded: list[dict[str, int]] = []
    found: Hang | None = None
    try:
        deadline = time.monotonic() + 200
        words = ("load_batch", "the others in")
        while not (found and all(word in found.why for word in words) and all(recorded)):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
            duty.tick()
            latest = facts.latest(RunLayout(tmp_path))
            found = latest.hang if latest else None
            ranks = json.loads((attempt.nodes / "0.json").read_text())["ranks"]
            recorded = [rank["collectives"] for rank in ranks] or [{}]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert found is not None
    assert found.ranks == (1,)
    assert "rank 1 on n1 did not arrive: it stands in load_batch (train.py:" in found.why
    assert found.why.endswith("the others in all_reduce")
    assert {path.name for path in attempt.stacks.iterdir()} == {"rank-0.txt", "rank-1.txt"}
    # The flight recorder tells the same story: rank 1 did not enqueue the sixth one.
    assert recorded[0]["0"] == recorded[1]["0"] + 1
    assert (attempt.root / "nccl" / "flight-recorder-rank-0").stat().st_size
    assert (attempt.root / "nccl" / "flight-recorder-rank-1").stat().st_size
