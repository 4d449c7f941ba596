"""Ranks that tell how far they are, and write their stacks when they stand still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.judging.stacks import main_thread, place
from orchestrator.monitor.beats import Beats
from orchestrator.rundir.beat import Beat, beats_folder, local_stack
from orchestrator.rundir.layout import RunLayout
from orchestrator.rundir.limits import Limits
from orchestrator.runstore import facts
from orchestrator.runtime import Run
from orchestrator.runtime.notices import NoticeBoard
from orchestrator.runtime.pulse import Pulse, Teller
from orchestrator.runtime.recorder import enqueued

from .runs import Threads, environment

ROOT = Path(__file__).parents[2]


class Clock:
    """Time that passes only when told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


LIMITS = Limits(min_s=300, factor=5, start_s=1200, save_s=900, max_s=3600)


def make_run(root: Path, limits: Limits = LIMITS, **changes: Any) -> tuple[Run, Pulse]:
    env = environment(root, **changes)
    pulse = Pulse(env, limits=limits)
    board = NoticeBoard(signals=(), file=env.notice_file, under_torchrun=False)
    return Run(env, board, pulse=pulse), pulse


def steps(run: Run, clock: Clock, count: int, *, step_s: float = 2.0) -> None:
    for _ in range(count):
        clock.now += step_s
        run.heartbeat(run.step + 1)
        run.should_stop()


# --- what a rank says -------------------------------------------------------------------------


def test_the_start(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.step) == ("starting", 1200, 0)
    clock.now += 50
    run.resume()
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.moved) == ("starting", 1200, 1050)


def test_steps(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    run.resume()
    steps(run, clock, 1)
    assert (pulse.beat.phase, pulse.beat.limit_s) == ("training", 1200)  # the next may compile
    steps(run, clock, 5)
    beat = pulse.beat
    assert (beat.step, beat.limit_s, beat.step_s, beat.wait_s) == (6, 300, 2.0, 0.0)
    assert beat.moved == clock.now
    steps(run, clock, 20, step_s=100.0)
    assert pulse.beat.limit_s == 500


def test_a_vote_is_progress_where_a_script_tells_no_steps(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    clock.now += 1000
    run.should_stop()
    assert (pulse.beat.phase, pulse.beat.moved, pulse.beat.wait_s) == ("starting", 2000, None)


def test_a_save_has_a_limit_of_its_own_and_is_no_part_of_a_step(
    tmp_path: Path, clock: Clock
) -> None:
    run, pulse = make_run(tmp_path)
    run.resume()
    steps(run, clock, 5)
    with run.checkpoint(5) as folder:
        assert (pulse.beat.phase, pulse.beat.limit_s) == ("saving", 900)
        (folder / "data").write_text("x")
        clock.now += 400
    assert (pulse.beat.phase, pulse.beat.limit_s, pulse.beat.moved) == ("training", 300, clock.now)
    steps(run, clock, 1)
    assert pulse.beat.step_s == 2.0
    with run.checkpoint(6) as folder:
        assert pulse.beat.limit_s == 2000  # the last one took 400 s and went well
        (folder / "data").write_text("x")


def test_a_save_that_failed_is_no_measure(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)

    def fail() -> None:
        with run.busy("evaluating"):
            clock.now += 400
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert pulse.beat.phase == "starting"
    with run.busy("evaluating"):
        assert pulse.beat.limit_s == 900


def test_work_of_the_scripts_own(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    with run.busy("evaluating", limit_s=7000):
        assert (pulse.beat.phase, pulse.beat.limit_s) == ("evaluating", 7000)


def test_limits_that_are_off(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path, Limits(enabled=False))
    run.resume()
    steps(run, clock, 5)
    with run.busy("evaluating", limit_s=5):
        assert pulse.beat.limit_s is None
    assert pulse.beat.limit_s is None
    assert pulse.beat.step_s == 2.0


def test_the_end(tmp_path: Path, clock: Clock) -> None:
    run, pulse = make_run(tmp_path)
    run.finished(step=3)
    assert (pulse.beat.phase, pulse.beat.limit_s) == ("ending", 300)


def test_a_rank_says_when_it_waits(tmp_path: Path) -> None:
    ranks = Threads(2)
    seen: list[bool] = []
    made = [environment(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    pulses = [Pulse(env, limits=LIMITS) for env in made]
    board = NoticeBoard(signals=(), file=None, under_torchrun=False)

    def vote(rank: int) -> None:
        if rank == 1:  # only once rank 0 waits
            deadline = time.monotonic() + 20
            while not pulses[0].beat.waiting and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append(pulses[0].beat.waiting)
        Run(made[rank], board, ranks=ranks, pulse=pulses[rank]).should_stop()

    assert ranks.run(vote) == [None, None]
    assert seen == [True]
    assert not any(pulse.beat.waiting for pulse in pulses)


def test_rank_0_says_it_on_the_shared_disk_too(tmp_path: Path, clock: Clock) -> None:
    run, _ = make_run(tmp_path)

    def told() -> Any:
        return json.loads(run.env.files.progress.read_text())

    run.resume()
    assert (told()["phase"], told()["limit_s"], "step" in told()) == ("starting", 1200, False)
    steps(run, clock, 5)
    assert (told()["phase"], told()["limit_s"], told()["step"]) == ("training", 300, 5)
    with run.busy("evaluating"):
        assert (told()["phase"], told()["limit_s"]) == ("evaluating", 900)
    assert told()["phase"] == "training"


def test_other_ranks_do_not(tmp_path: Path, clock: Clock) -> None:
    run, _ = make_run(tmp_path, rank=1, world_size=2)
    with run.busy("evaluating"):
        run.heartbeat(1)
    assert not run.env.files.progress.exists()


# --- what is written --------------------------------------------------------------------------


@pytest.fixture
def teller(tmp_path: Path) -> Iterator[Callable[..., tuple[Pulse, Teller]]]:
    made: list[Teller] = []

    def make(**limits: Any) -> tuple[Pulse, Teller]:
        env = environment(tmp_path / "run", rank=2, world_size=4)
        pulse = Pulse(env, limits=Limits(**limits))
        made.append(Teller(pulse, env, tmp_path / "local"))
        return pulse, made[-1]

    yield make
    for one in made:
        one._timer.stop()


def written(folder: Path) -> Beat:
    found = Beat.from_text((beats_folder(folder / "local") / "rank-2").read_text())
    assert found is not None
    return found


def test_beats_on_the_nodes_own_disk(tmp_path: Path, teller: Callable[..., Any]) -> None:
    pulse, one = teller()
    one.tell()
    assert written(tmp_path) == pulse.beat
    pulse.step(7)
    with pulse.waiting():
        one.tell()
        assert written(tmp_path) == pulse.beat
        assert (written(tmp_path).step, written(tmp_path).waiting) == (7, True)
    path = beats_folder(tmp_path / "local") / "rank-2"
    assert (path.stat().st_mode & 0o077, path.parent.stat().st_mode & 0o077) == (0o044, 0)


def test_stacks_of_a_rank_that_stands_still_and_gets_on(
    tmp_path: Path, teller: Callable[..., Any]
) -> None:
    pulse, one = teller(min_s=0.05, start_s=0.05)
    one.tell()
    own, shared = (
        local_stack(tmp_path / "local", 2),
        tmp_path / "run" / "attempts" / "1" / "stacks" / "rank-2.txt",
    )
    stand_still(lambda: one.tell() or shared.exists())
    assert own.stat().st_mode & 0o777 == shared.stat().st_mode & 0o777 == 0o600
    assert "stand_still" in [frame.function for frame in main_thread(shared.read_text())]
    before = shared.read_text()
    one.tell()
    assert shared.read_text() == before  # once is enough
    pulse.step(1)
    pulse.limits = Limits()
    pulse.step(2)
    one.tell()
    assert own.read_text() == ""
    assert not shared.exists()


def stand_still(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_stacks_without_limits(tmp_path: Path, teller: Callable[..., Any]) -> None:
    _, one = teller(min_s=1.0, start_s=1.0)
    _, off = teller(enabled=False)
    one.tell()
    off.tell()  # the timer is the process's own, so it is off now
    deadline = time.monotonic() + 1.3
    while time.monotonic() < deadline:
        time.sleep(0.02)
    assert local_stack(tmp_path / "local", 2).read_text() == ""


def test_what_the_flight_recorder_says() -> None:
    status = {
        "0": {"last_enqueued_collective": "12", "last_completed_collective": "11"},
        "1": {"last_enqueued_collective": "-1"},
        "2": {},
    }
    assert enqueued({"pg_status": status, "version": "2.10"}) == {"0": 12}
    assert enqueued({}) == {}


# --- in processes of their own ----------------------------------------------------------------

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

        stand_still(found)
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
        stand_still(lambda: "load_batch" in (why := found()) and "the others in" in why)
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
