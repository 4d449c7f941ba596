"""Agreement over gloo between real processes: what happens when one does not come."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
HEAD = """
import os, sys, time
from orchestrator import runtime
run = runtime.attach()
import torch.distributed as dist
dist.init_process_group("gloo")
rank = run.env.rank
assert run.should_stop() is None
"""


def launch(tmp_path: Path, body: str, *, notice: str = "") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(HEAD + body)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            script,
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "FSDPQ_RUN_DIR": str(tmp_path),
            "FSDPQ_ATTEMPT": "1",
            "FSDPQ_NOTICE_FILE": str(tmp_path / "notice"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_all_ranks_learn_of_one_ranks_notice(tmp_path: Path) -> None:
    body = """
if rank == 1:
    os.kill(os.getpid(), 12)
    while run.noticed() is None:
        time.sleep(0.01)
notice = run.should_stop()
words = (rank, notice.signal, notice.origin, run.agreed(True), run.agreed(rank == 0))
os.write(1, " ".join(map(str, words)).encode() + b"\\n")
dist.barrier()
dist.destroy_process_group()
"""
    found = launch(tmp_path, body)
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [
        "0 USR2 vote True False",
        "1 USR2 signal True False",
    ]


def test_after_a_term_the_vote_does_not_wait_long(tmp_path: Path) -> None:
    body = f"""
with runtime.guard(run):
    if rank == 1:
        time.sleep(60)
    open({str(tmp_path / "notice")!r}, "w").write("TERM 1\\\\n")
    began = time.monotonic()
    try:
        run.should_stop(timeout_s=60, term_timeout_s=2)
    finally:
        print(f"{{time.monotonic() - began:.1f}} s", flush=True)
"""
    found = launch(tmp_path, body)
    assert found.returncode == 1
    assert 1.5 < float(found.stdout.split()[0]) < 20
    assert "VoteError: the ranks did not agree within 2 s" in found.stderr


def test_a_rank_that_is_gone_is_noticed_at_once(tmp_path: Path) -> None:
    body = """
with runtime.guard(run):
    if rank == 1:
        print(time.time(), flush=True)
        os._exit(7)
    try:
        run.should_stop(timeout_s=60)
    except BaseException as problem:
        print(type(problem).__name__, flush=True)
        raise
"""
    found = launch(tmp_path, body)
    ended = time.time()
    assert found.returncode == 1
    died_at, *rest = found.stdout.split()
    # Either the connection breaks first, or torchrun's SIGTERM ends the survivor.
    assert rest in (["VoteError"], [])
    assert ended - float(died_at) < 25
