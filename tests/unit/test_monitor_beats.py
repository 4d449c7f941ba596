"""What the monitor of a node says of its ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.monitor.beats import Beats, process_state
from orchestrator.monitor.gpus import Gpus
from orchestrator.rundir.beat import Beat, beats_folder, local_stack
from orchestrator.rundir.node_report import Gpu, NodeReport

NO_PROCESS = 2**22 + 1  # above the largest pid there can be


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A node's folders, a clock, and the duty."""

    def __init__(self, root: Path, gpus: Gpus | None = None, start_s: float | None = None) -> None:
        self.local = root / "local"
        self.attempt = root / "attempts" / "1"
        self.attempt.mkdir(parents=True)
        self.clock = Clock()
        self.duty = Beats(
            attempt=self.attempt,
            local_dir=self.local,
            number=1,
            node="n2",
            gpus=gpus,
            start_s=start_s,
            clock=self.clock,
            gap_s=float("inf"),  # this clock goes by leaps
        )

    def beat(self, rank: int = 0, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "local_rank": rank,
            "world_size": 4,
            "pid": os.getpid(),
            "step": 41,
            "phase": "training",
            "since": 1.0,
            "moved": self.clock.now,
            "limit_s": 300.0,
        }
        beats_folder(self.local).mkdir(parents=True, exist_ok=True)
        path = beats_folder(self.local) / f"rank-{rank}"
        path.write_text(Beat(rank=rank, **{**fields, **changes}).to_text())

    def tick(self, after_s: float = 0.0) -> None:
        self.clock.now += after_s
        self.duty.tick()

    @property
    def path(self) -> Path:
        return self.attempt / "nodes" / "1.json"

    def report(self) -> NodeReport:
        found = NodeReport.from_json(json.loads(self.path.read_text()))
        assert found is not None
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_whose_ranks_have_said_nothing_yet(node: Node) -> None:
    node.tick()
    assert (node.report().node, node.report().ranks) == ("n2", ())


def test_ranks_with_their_idle_time_by_the_nodes_own_clock(node: Node) -> None:
    node.beat(5, step_s=1.5, wait_s=0.2, waiting=True)
    node.beat(4, moved=node.clock.now - 10)
    node.tick(after_s=2.0)
    first, second = node.report().ranks
    assert (first.rank, first.idle_s, first.stalled, first.alive, first.stopped) == (
        4,
        12.0,
        False,
        True,
        False,
    )
    assert (second.rank, second.idle_s, second.step_s, second.wait_s, second.waiting) == (
        5,
        2.0,
        1.5,
        0.2,
        True,
    )
    assert abs(node.report().at - time.time()) < 60


def test_every_15_seconds(node: Node) -> None:
    node.beat()
    node.tick()
    node.beat(step=42)
    node.tick(after_s=14)
    assert node.report().ranks[0].step == 41
    node.tick(after_s=1)
    assert node.report().ranks[0].step == 42


def test_at_once_when_a_rank_stalls_and_when_it_gets_on(node: Node) -> None:
    node.beat()
    node.tick()
    node.tick(after_s=295)
    node.tick(after_s=6)
    assert node.report().ranks[0].stalled
    node.beat(step=42)
    node.tick(after_s=1)
    assert not node.report().ranks[0].stalled


def test_at_once_when_the_flight_recorder_is_there(node: Node) -> None:
    node.beat(moved=node.clock.now - 301)
    node.tick()
    node.beat(moved=node.clock.now - 301, collectives={"0": 7})
    node.tick(after_s=1)
    assert node.report().ranks[0].collectives == {"0": 7}


def test_no_limit_no_stall(node: Node) -> None:
    node.beat(limit_s=None)
    node.tick(after_s=99999)
    assert not node.report().ranks[0].stalled


def test_a_clock_that_is_behind(node: Node) -> None:
    node.beat(moved=node.clock.now + 50)
    node.tick()
    assert node.report().ranks[0].idle_s == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"rank": 0}', "\0", '{"rank": -1}'])
def test_torn_beats_are_passed_over(node: Node, text: str) -> None:
    node.beat(3)
    (beats_folder(node.local) / "rank-0").write_text(text)
    node.tick()
    assert [rank.rank for rank in node.report().ranks] == [3]


@pytest.mark.parametrize("value", [None, "x", -1, 1e300, True, [1], {"a": 1}, 0.5])
@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Beat)])
def test_beats_of_any_content_are_read(node: Node, key: str, value: object) -> None:
    node.beat(0)
    path = beats_folder(node.local) / "rank-0"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    node.tick()
    assert len(node.report().ranks) <= 1


def test_stacks_are_brought_along_where_the_rank_could_not(node: Node) -> None:
    source, target = local_stack(node.local, 0), node.attempt / "stacks" / "rank-0.txt"
    source.parent.mkdir(parents=True)
    source.write_text("half")
    node.beat()
    node.tick()
    assert not target.exists()
    node.tick(after_s=301)
    assert target.read_text() == "half"
    assert target.stat().st_mode & 0o777 == 0o600
    source.write_text("half and whole")
    node.tick(after_s=15)
    assert target.read_text() == "half and whole"


def test_empty_stacks_are_not(node: Node) -> None:
    local_stack(node.local, 0).parent.mkdir(parents=True)
    local_stack(node.local, 0).touch()
    node.beat()
    node.tick(after_s=301)
    assert not (node.attempt / "stacks").exists()


def test_a_process_that_is_not_there(node: Node) -> None:
    node.beat(0, pid=NO_PROCESS)
    node.beat(1, pid=NO_PROCESS, phase="ending")
    node.tick()
    assert [rank.alive for rank in node.report().ranks] == [False, False]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def wait_for(pid: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while process_state(pid) != state:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.processes
def test_a_process_that_is_stopped_or_dead(node: Node, child: subprocess.Popen[bytes]) -> None:
    node.beat(pid=child.pid)
    node.tick()
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(child.pid, "T")
    node.tick(after_s=1)
    (rank,) = node.report().ranks
    assert (rank.alive, rank.stopped) == (True, True)
    os.kill(child.pid, signal.SIGKILL)
    wait_for(child.pid, "Z")
    node.tick(after_s=1)
    (rank,) = node.report().ranks
    assert (rank.alive, rank.stopped) == (False, False)


# --- GPUs -------------------------------------------------------------------------------------


def answer(gpus: Gpus, now: float = 0.0) -> dict[int, Gpu]:
    deadline = time.monotonic() + 30
    while not (found := gpus.look(now)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return dict(found)


def say(text: str, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})")


@pytest.mark.processes
def test_clocks_go_into_the_report(tmp_path: Path) -> None:
    gpus = Gpus(questions=[say("0, 1755, 41, 0x1\n1, 1200, 88, 0x0000000000000048")], visible="")
    assert answer(gpus, now=4990.0)[1] == Gpu(
        sm_mhz=1200, celsius=88, slowed=("hardware slowdown", "thermal (hardware)")
    )
    node = Node(tmp_path, gpus)
    node.beat(9, local_rank=1)
    node.tick()
    gpu = node.report().ranks[0].gpu
    assert gpu is not None
    assert (gpu.sm_mhz, gpu.celsius) == (1200, 88)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("idle", [(345, 37), (345, 37)]),
        ("training", [(1440, 67), (1440, 64)]),  # capped by power, which is no fault
        ("waiting", [(1980, 43), (1980, 41)]),
    ],
)
def test_two_h200_that_nothing_slows_down(moment: str, expected: list[tuple[int, int]]) -> None:
    from orchestrator.monitor.gpus import parse

    folder = Path(__file__).parents[1] / "data" / "nvidia-smi"
    found = parse((folder / f"clocks-h200-{moment}.txt").read_text())
    assert [(gpu.sm_mhz, gpu.celsius) for gpu in found.values()] == expected
    assert [gpu.slowed for gpu in found.values()] == [(), ()]


@pytest.mark.processes
def test_an_older_driver_is_asked_in_its_own_words() -> None:
    gpus = Gpus(questions=[say("Field is not valid", 2), say("0, 5, 6, 0x0")], visible="")
    assert answer(gpus) == {0: Gpu(sm_mhz=5, celsius=6)}


@pytest.mark.processes
def test_no_gpus_no_questions() -> None:
    gpus = Gpus(questions=[("/nowhere/nvidia-smi",), ("/nowhere/nvidia-smi",)])
    assert gpus.look(0.0) == gpus.look(100.0) == {}


@pytest.mark.processes
def test_one_that_does_not_answer_is_never_asked_again(tmp_path: Path) -> None:
    script = f"import signal; open({str(tmp_path / 'asked')!r}, 'a').write('x'); signal.pause()"
    gpus = Gpus(questions=[(sys.executable, "-c", script)])
    gpus.look(0.0)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "asked").exists() and (tmp_path / "asked").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = gpus._child
    assert child is not None
    assert gpus.look(21.0) == {}
    child.wait(timeout=30)
    for now in (22.0, 100.0, 200.0):
        assert gpus.look(now) == {}
    assert (tmp_path / "asked").read_text() == "x"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", [10, 11, 12]), ("2,0", [12, 10]), ("GPU-5a, GPU-7", [10, 11, 12]), ("7", [10, 11, 12])],
)
def test_which_rank_has_which(visible: str, expected: list[int]) -> None:
    from orchestrator.monitor.gpus import by_local_rank, parse

    gpus = parse("0, 10, 1, 0x0\n1, 11, [N/A], x\n2, 12, 1, 0x0\nmore, 1, 2, 3\n\n")
    found = by_local_rank(gpus, visible)
    assert [found[rank].sm_mhz for rank in sorted(found)] == expected


def test_a_rank_that_has_just_stalled_is_late_to_the_reader_too(node: Node) -> None:
    node.beat()
    node.tick()
    node.tick(after_s=300.02)
    (rank,) = node.report().ranks
    assert rank.stalled
    assert rank.limit_s is not None
    assert rank.idle_s > rank.limit_s


def test_a_node_that_stood_still_makes_no_rank_late(tmp_path: Path) -> None:
    """A suspended job, or a machine that was frozen: its ranks stood still with the monitor."""
    node = Node(tmp_path)
    node.duty._gap_s = 10.0
    node.beat()
    node.tick()
    node.tick(after_s=400.0)
    (rank,) = node.report().ranks
    assert not rank.stalled
    for _ in range(320):
        node.tick(after_s=1.0)
    (rank,) = node.report().ranks
    assert rank.stalled


@pytest.mark.parametrize(
    ("start_s", "log", "beat", "marked"),
    [
        (60.0, False, False, True),
        (60.0, True, False, False),
        (60.0, False, True, False),
        (None, False, False, False),
    ],
)
def test_workers_that_are_never_started(
    tmp_path: Path, start_s: float | None, log: bool, beat: bool, marked: bool
) -> None:
    """A script that knows nothing of fsdpq has logs, if nothing else."""
    node = Node(tmp_path, start_s=start_s)
    if log:
        path = node.attempt / "logs" / "node-0" / "x" / "0" / "stdout.log"
        path.parent.mkdir(parents=True)
        path.touch()
    if beat:
        node.beat()
    node.tick()
    node.tick(59)
    assert not (tmp_path / "stalled").exists()
    if beat:
        node.beat()
    node.tick(2)
    node.tick(15)
    assert (tmp_path / "stalled").exists() == marked
