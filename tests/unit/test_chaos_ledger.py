from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.ledger import Tail, give_order, goal, rank_file, take_order, write


def test_an_order_is_obeyed_once_and_by_one_rank(tmp_path: Path) -> None:
    give_order(tmp_path, "raise", 2)
    assert not take_order(tmp_path, "raise", 1)
    assert take_order(tmp_path, "raise", 2)
    assert not take_order(tmp_path, "raise", 2)


def test_a_goal_that_is_not_there_yet(tmp_path: Path) -> None:
    assert goal(tmp_path) is None
    (tmp_path / "goal").write_text("17\n")
    assert goal(tmp_path) == 17


def test_the_tail_reads_whole_lines_as_they_come(tmp_path: Path) -> None:
    tail = Tail(rank_file(tmp_path, 0))
    assert tail.lines() == []
    write(tmp_path, 0, {"kind": "resumed", "attempt": 1, "step": 0})
    write(tmp_path, 0, {"kind": "step", "attempt": 1, "step": 1})
    with rank_file(tmp_path, 0).open("a") as file:
        file.write('{"kind": "st')
        file.flush()
        assert [line["step"] for line in tail.lines()] == [0, 1]
        file.write('ep", "attempt": 1, "step": 2, "at": 5.0}\n')
    assert (tail.newest("step") or {})["step"] == 2
    assert tail.newest("start") is None


def test_steps_since_a_time(tmp_path: Path) -> None:
    tail = Tail(rank_file(tmp_path, 1))
    write(tmp_path, 1, {"kind": "step", "attempt": 1, "step": 1})
    before = time.time()
    for number in (2, 3):
        write(tmp_path, 1, {"kind": "step", "attempt": 1, "step": number})
    write(tmp_path, 1, {"kind": "saving", "attempt": 1, "step": 3})
    assert tail.steps_since(before) == 2
    assert tail.steps_since(0.0) == 3
    assert tail.steps_since(time.time()) == 0
