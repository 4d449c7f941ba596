"""Ranks that hang, in processes of their own: they leave their stacks and are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.judging.stacks import main_thread, place
from orchestrator.monitor.beats import Beats
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts

from .polling import until

ROOT = Path(__file__).parents[2]
FORK = """
import os, sys, time
from orchestrator import runtime
run = runtime.attach()
from pathlib import Path
beat = Path(os.environ["FSDPQ_LOCAL_DIR"], "beats", "rank-0")
while not beat.exists():
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    sys.exit(0)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    if os.waitpid(pid, os.WNOHANG)[0]:
        print("ended")
        break
    time.sleep(0.01)
else:
    os.kill(pid, 9)
    print("hangs")
"""


def environ(folder: Path, **more: str) -> dict[str, str]:
    (folder / "local").mkdir(exist_ok=True)
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FSDPQ_RUN_DIR": str(folder),
        "FSDPQ_ATTEMPT": "1",
        "FSDPQ_LOCAL_DIR": str(folder / "local"),
        **more,
    }


def test_a_forked_child_can_end(tmp_path: Path) -> None:
    """The timer's lock would be taken along without the thread that gives it back."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (found.stdout, found.stderr) == ("ended\n", "")


STUBBORN = """
import ctypes
from orchestrator import runtime
run = runtime.attach()
def hold():
    ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock
hold()
"""


def test_a_rank_that_holds_the_interpreter_leaves_its_stack_too(tmp_path: Path) -> None:
    env = environ(tmp_path, FSDPQ_HANG="min_s=1,start_s=1")
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], env=env)
    try:
        duty = monitor(tmp_path)
        stacks = tmp_path / "attempts" / "1" / "stacks" / "rank-0.txt"

        def found() -> bool:
            duty.tick()
            # The main thread is written last, and the file may be read before that.
            return stacks.exists() and "in <module>" in stacks.read_text()

        until(found, "no stack is written", within_s=30)
        text = stacks.read_text()
        assert place(text) is not None
        assert [f.function for f in main_thread(text)] == ["hold", "<module>"]
    finally:
        child.kill()
        child.wait()


def monitor(folder: Path) -> Beats:
    return Beats(attempt=folder / "attempts" / "1", local_dir=folder / "local", number=0, node="n1")


PAIR = """
import os, sys, time
sys.path.insert(0, {tests!r})
from multiprocessing.connection import Client, Listener
from orchestrator import runtime

class Pair:
    world_size = 2
    rank = int(os.environ["RANK"])
    def __init__(self):
        address = os.environ["SOCKET"]
        if self.rank == 0:
            with Listener(address, "AF_UNIX") as listener:
                open(address + ".there", "w").close()
                self.peer = listener.accept()
        else:
            while not os.path.exists(address + ".there"):
                time.sleep(0.01)
            self.peer = Client(address, "AF_UNIX")
    def share(self, value):
        self.peer.send(value)
        return self.peer.recv()
    def maximum(self, values, *, timeout_s):
        return [max(pair) for pair in zip(values, self.share(values))]
    def broadcast(self, value=None):
        other = self.share(value)
        return value if self.rank == 0 else other
    def gather(self, value):
        other = self.share(value)
        return [value, other] if self.rank == 0 else []

def load_batch():
    while True:
        time.sleep(60)

run = runtime.attach(ranks=Pair())
run.resume()
for step in range(1, 100):
    time.sleep(0.01)
    if step == 9 and run.env.rank == 1:
        load_batch()
    run.heartbeat(step)
    run.should_stop()
"""


def test_two_ranks_of_which_one_hangs(tmp_path: Path) -> None:
    """All the way: the stacks are written, the node reports, the reader names the rank."""
    script = tmp_path / "train.py"
    script.write_text(PAIR.replace("{tests!r}", repr(str(ROOT))))
    env = environ(
        tmp_path,
        FSDPQ_HANG="min_s=1,start_s=60,save_s=60",
        WORLD_SIZE="2",
        SOCKET=str(tmp_path / "socket"),
    )
    children = [
        subprocess.Popen(
            [sys.executable, script], env={**env, "RANK": f"{n}", "LOCAL_RANK": f"{n}"}
        )
        for n in range(2)
    ]
    try:
        run, duty = RunLayout(tmp_path), monitor(tmp_path)

        def found() -> str:
            duty.tick()
            attempt = facts.latest(run)
            return attempt.hang.why if attempt and attempt.hang else ""

        # A machine that is busy may let both stand still for a second before.
        until(
            lambda: "load_batch" in (why := found()) and "the others in" in why,
            "the rank that hangs is not named",
            within_s=30,
        )
        attempt = facts.latest(run)
        assert attempt is not None
        assert attempt.hang is not None
        assert (attempt.hang.ranks, attempt.hang.nodes) == ((1,), ("n1",))
        assert "rank 1 on n1 did not arrive: it stands in load_batch (train.py:" in attempt.hang.why
        assert attempt.hang.why.endswith(", the others in should_stop")
        assert "no rank has done a step for" in attempt.hang.why
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_without_a_folder_of_the_node_nothing_is_written(tmp_path: Path) -> None:
    env = environ(tmp_path)
    del env["FSDPQ_LOCAL_DIR"]
    code = "from orchestrator import runtime; run = runtime.attach(); run.finished(step=1)"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    assert list((tmp_path / "local").iterdir()) == []
    assert not (tmp_path / "attempts" / "1" / "stacks").exists()
