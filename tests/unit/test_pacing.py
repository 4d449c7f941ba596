"""When `auto` saves: what rank 0 reads and decides, and how all ranks come to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.interval import FIRST_S, Ended, Past, daly_s
from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime import Run, past, savelog
from orchestrator.runtime.notices import NoticeBoard
from orchestrator.runtime.pacing import Pacer

from .runs import Threads, environment, save
from .runs import make_run as make_worker

HOUR = 3600.0


class Clock:
    """A clock that only this test moves."""

    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now


class Trainer:
    """Steps of `step_s` and saves of `save_s` under a pacer."""

    def __init__(self, root: Path, *, step_s: float, save_s: float, **options: Any) -> None:
        self.clock = Clock()
        self.step_s, self.save_s = step_s, save_s
        plain = {"step": 0, "mtbf_s": 4 * HOUR, "max_interval_s": HOUR, "clock": self.clock}
        self.pacer = Pacer(environment(root), **{**plain, **options})

    def run(self, steps: range) -> list[int]:
        """Return the steps that were saved."""
        saved = []
        for step in steps:
            self.clock.now += self.step_s
            if self.pacer.due(step):
                saved.append(step)
                self.clock.now += self.save_s
                self.pacer.saved(step, blocked_s=self.save_s)
        return saved


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def lines(run: RunLayout) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.saves.read_text().splitlines()]


# -- the decision ----------------------------------------------------------------------------------


def test_one_early_save_and_then_dalys_interval(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=2.0, save_s=10.0)
    first, *rest = trainer.run(range(1, 2001))
    assert first == FIRST_S / 2
    gaps = [b - a for a, b in zip([first, *rest], rest, strict=False)]
    assert gaps[0] == pytest.approx(daly_s(10, 4 * HOUR) / 2, rel=0.01)
    assert gaps == sorted(gaps)  # as it goes on without an end, it gets longer


def test_never_longer_than_the_maximum_even_if_steps_slow_down(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=1.0, save_s=5.0, max_interval_s=100.0)
    assert trainer.run(range(1, 261)) == [60, 160, 260]
    trainer.step_s = 30.0
    assert trainer.run(range(261, 268)) == [263, 266]


def test_a_step_longer_than_the_interval_is_saved_each_time(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=200.0, save_s=5.0, max_interval_s=100.0)
    assert trainer.run(range(1, 4)) == [1, 2, 3]


def test_it_counts_from_where_it_resumed(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=2.0, save_s=10.0, step=1000)
    assert trainer.run(range(1001, 1041)) == [1030]


def test_changes_are_written_down_and_small_ones_are_not(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=2.0, save_s=10.0)
    trainer.run(range(1, 1001))
    (first, *rest) = lines(RunLayout(tmp_path))
    assert (first["kind"], first["attempt"], first["step"]) == ("interval", 1, 30)
    assert first["steps"] == int(first["seconds"] / 2)
    assert "a save blocks 10 s" in first["why"]
    assert len(rest) <= 1
    trainer.save_s = 90.0
    trainer.run(range(1001, 3001))
    assert lines(RunLayout(tmp_path))[-1]["save_s"] == 90.0


# -- what earlier attempts left --------------------------------------------------------------------


def test_earlier_attempts(tmp_path: Path) -> None:
    env = environment(tmp_path, attempt=6)
    for number, (progress, status, end) in enumerate(
        [
            ({"step": 9, "at": 150}, None, None),  # killed: nobody wrote its end
            ({"step": 9, "at": 150}, {"outcome": "stopped", "step": 9, "at": 160}, 170),
            ({"step": 9, "at": 150}, {"outcome": "failed", "step": 9, "at": 160}, None),
            (None, {"outcome": "stopped", "step": 4, "at": 160}, 161),
        ],
        start=1,
    ):
        files = env.run.attempt(number)
        write(files.start, {"started_at": 100})
        write(files.resume, {"step": 4})
        write(files.progress, progress or "torn {")
        write(files.status, status or [])
        write(files.exit, {"ended_at": end} if end else "")
    write(env.run.attempt(5).start, {"started_at": "yesterday"})
    write(env.run.attempt(6).start, {"started_at": 1})  # this one is no earlier one
    assert past.earlier(env) == [
        Past(50, Ended.LOST),
        Past(70, Ended.SAVED),
        Past(60, Ended.LOST),
        Past(61, Ended.IDLE),
    ]


@pytest.mark.parametrize("value", ["NaN", "1e400", "1" + "0" * 400, "-5", '"5"', "true", "null"])
def test_numbers_that_make_no_sense_are_passed_over(tmp_path: Path, value: str) -> None:
    write(tmp_path / "plan.json", f'{{"notice_s": {value}}}')
    write(tmp_path / "saves.jsonl", f'{{"kind": "save", "blocked_s": {value}}}\n')
    write(tmp_path / "attempts/1/start.json", f'{{"started_at": {value}}}')
    write(tmp_path / "attempts/1/exit.json", f'{{"ended_at": {value}}}')
    env = environment(tmp_path, attempt=2)
    assert (past.earlier(env), past.saves(env.run)) == ([], [])
    assert past.notice_s(env.run) is None


def test_no_attempts_no_saves_no_plan(tmp_path: Path) -> None:
    env = environment(tmp_path / "run")
    assert past.earlier(env) == []
    assert past.saves(env.run) == []
    assert past.notice_s(env.run) is None


def test_the_newest_saves_of_all_attempts(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    written = [{"kind": "save", "blocked_s": n} for n in range(2000)]
    text = "\n".join(json.dumps(line) for line in written)
    write(run.saves, f'{text}\n[]\n{{"kind": "interval", "blocked_s": 1}}\n{{"kind": "save"}}\n{{"')
    assert [save.blocked_s for save in past.saves(run)] == list(range(1980, 2000))


def test_the_notice_of_the_plan_decides_what_counts(tmp_path: Path) -> None:
    write(tmp_path / "plan.json", {"notice_s": 5})
    write(tmp_path / "saves.jsonl", '{"kind": "save", "blocked_s": 30}\n')
    trainer = Trainer(tmp_path, step_s=2.0, save_s=30.0)
    trainer.run(range(1, 3))
    assert trainer.pacer.interval is not None
    assert trainer.pacer.interval.save_s == 30
    assert not trainer.pacer.interval.notice_saves


# -- in a run --------------------------------------------------------------------------------------


def test_a_save_is_written_down(tmp_path: Path) -> None:
    run = make_worker(tmp_path)
    run.resume()
    run.env.run.saves.write_text("torn")
    save(run, 5)
    save(run, 6, reason="end")
    torn, *rest = run.env.run.saves.read_text().splitlines()
    one, two = map(json.loads, rest)
    assert torn == "torn"
    assert (one["kind"], one["attempt"], one["step"], one["reason"]) == ("save", 1, 5, "interval")
    assert one["bytes"] == len("step 5")
    assert one["blocked_s"] == one["seconds"] > 0
    assert two["reason"] == "end"


def test_a_save_for_a_notice_says_so(tmp_path: Path) -> None:
    run = make_worker(tmp_path)
    run.resume()
    (tmp_path / "notice").write_text("USR2 5\n")
    assert run.should_stop()
    save(run, 5)
    assert lines(run.env.run)[0]["reason"] == "notice"


def test_a_save_that_cannot_be_written_down_is_a_save_all_the_same(tmp_path: Path) -> None:
    run = make_worker(tmp_path)
    run.resume()
    run.env.run.saves.mkdir()
    assert save(run, 5).is_dir()
    assert run.saved_step == 5


def test_all_ranks_save_at_the_same_steps(tmp_path: Path) -> None:
    """A pacer in rank 0 alone; the vote tells the others. Every save is due at once here."""
    ranks = Threads(3)

    def work(rank: int) -> list[int]:
        env = environment(tmp_path, rank=rank, world_size=3)
        board = NoticeBoard(signals=(), file=env.notice_file, under_torchrun=False)
        run = Run(env, board, ranks=ranks)
        run.resume()
        saved = []
        for step in range(1, 7):
            run.heartbeat(step)
            assert run.should_stop() is None
            if run.checkpoint_due(step, max_interval_s=1e-9):
                saved.append(step)
                with run.checkpoint(step) as folder:
                    (folder / f"rank-{rank}").write_text("x")
                assert not run.checkpoint_due(step)
        return saved

    found = ranks.run(work)
    assert found == [[2, 3, 4, 5, 6]] * 3
    assert {line["attempt"] for line in lines(RunLayout(tmp_path))} == {1}


def test_a_script_without_heartbeats_saves_too(tmp_path: Path) -> None:
    run = make_worker(tmp_path)
    run.resume()
    saved = []
    for step in range(1, 6):
        run.should_stop()
        if run.checkpoint_due(step, max_interval_s=1e-9):
            saved.append(step)
            save(run, step)
    assert saved[-1] == 5
    assert len(saved) >= 2


def test_a_script_that_never_asks_is_not_paced(tmp_path: Path) -> None:
    run = make_worker(tmp_path)
    run.resume()
    for step in range(1, 4):
        run.heartbeat(step)
        run.should_stop()
        save(run, step)
    assert {line["kind"] for line in lines(run.env.run)} == {"save"}


def test_a_size_that_cannot_be_read(tmp_path: Path) -> None:
    env = environment(tmp_path)
    savelog.record_save(env, step=3, seconds=1.0, reason="end")
    assert lines(env.run)[0]["bytes"] is None


# -- saves in the background -----------------------------------------------------------------------


def test_none_is_due_while_one_is_under_way(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step_s=1.0, save_s=5.0, max_interval_s=10.0)
    assert trainer.run(range(1, 13)) == [10]
    trainer.pacer.began(12)
    assert trainer.run(range(13, 60)) == []
    trainer.pacer.ended(12, blocked_s=0.1, seconds=47.0)
    assert trainer.run(range(60, 62)) == [60]


def test_blocked_seconds_are_the_cost_and_ten_times_the_whole_of_it_a_bound(tmp_path: Path) -> None:
    cost = {"kind": "save", "blocked_s": 0.1, "blocking": False}
    lines_of = [{**cost, "seconds": 20.0}, {**cost, "seconds": 200.0}, {**cost, "seconds": 200.0}]
    last = {"kind": "save", "blocked_s": 30.0, "seconds": 30.0, "blocking": True}
    write(tmp_path / "saves.jsonl", "".join(json.dumps(x) + "\n" for x in [*lines_of, last]))
    write(tmp_path / "plan.json", {"notice_s": 120})
    trainer = Trainer(tmp_path, step_s=1.0, save_s=1.0)
    trainer.run(range(1, 20))
    found = trainer.pacer.interval
    assert found is not None
    assert found.save_s == 0.1
    assert found.seconds == 10 * 200.0 > daly_s(0.1, 4 * HOUR)
    assert not found.notice_saves  # the save of a notice takes the whole 200 s
