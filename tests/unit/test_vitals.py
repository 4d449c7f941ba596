"""What the files of a live attempt tell of its progress, by way of `facts.latest`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.attempt import Attempt
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.rundir.node_report import RankReport
from orchestrator.runstore import facts, vitals

from .builders import NOW, make_run, node_report, rank_report
from .test_stacks import LOADING, VOTING, dump


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.setattr(time, "time", lambda: NOW)
    layout = make_run(tmp_path / "llama")
    layout.attempt(1).nodes.mkdir(parents=True)
    layout.attempt(1).stacks.mkdir()
    return layout


def report(run: RunLayout, number: int, *ranks: RankReport, at: float = NOW) -> AttemptLayout:
    files = run.attempt(1)
    content = node_report(*ranks, node=f"n{number}", at=at).to_json()
    (files.nodes / f"{number}.json").write_text(json.dumps(content))
    return files


def latest(run: RunLayout) -> Attempt:
    found = facts.latest(run)
    assert found is not None
    return found


def test_an_attempt_that_gets_on(run: RunLayout) -> None:
    report(run, 0, rank_report(0), rank_report(1))
    assert (latest(run).hang, latest(run).straggler) == (None, None)


def test_an_attempt_that_hangs(run: RunLayout) -> None:
    report(run, 0, rank_report(0, idle_s=310.0))
    files = report(run, 1, rank_report(1, idle_s=311.0))
    (files.stacks / "rank-0.txt").write_text(dump(VOTING))
    (files.stacks / "rank-1.txt").write_text(dump(LOADING))
    (files.stacks / "rank-x.txt").write_text("?")
    (files.stacks / "rank-9.txt").write_bytes(b"\xff\x00")
    found = latest(run).hang
    assert found is not None
    assert (found.ranks, found.nodes) == ((1,), ("n1",))
    assert "it stands in load_batch (data.py:41), the others in should_stop" in found.why


def test_an_attempt_that_is_slow(run: RunLayout) -> None:
    ranks = [rank_report(n, step_s=1.0, wait_s=0.5 * (n != 1)) for n in range(3)]
    report(run, 0, *ranks)
    found = latest(run).straggler
    assert found is not None
    assert (found.rank, found.node) == (1, "n0")


def test_not_after_its_end(run: RunLayout) -> None:
    files = report(run, 0, rank_report(0, idle_s=310.0))
    assert latest(run).hang is not None
    files.exit.write_text(json.dumps({"action": "none", "ended_at": NOW}))
    assert latest(run).hang is None


def test_not_for_older_attempts_nor_in_the_list_of_all(run: RunLayout) -> None:
    report(run, 0, rank_report(0, idle_s=310.0))
    assert [attempt.hang for attempt in facts.attempts(run)] == [None]
    run.attempt(2).root.mkdir()
    assert latest(run).hang is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"at": 1}', '{"at": "x", "ranks": []}'])
def test_broken_reports_are_passed_over(run: RunLayout, text: str) -> None:
    files = report(run, 0, rank_report(0, idle_s=310.0))
    (files.nodes / "1.json").write_text(text)
    assert latest(run).hang is not None
    (files.nodes / "0.json").write_text(text)
    assert latest(run).hang is None


# --- a node without a monitor -----------------------------------------------------------------


def progress(run: RunLayout, **content: Any) -> None:
    run.attempt(1).progress.write_text(json.dumps(content))


def test_rank_0s_own_word(run: RunLayout) -> None:
    progress(run, step=3, at=NOW - 400, phase="training", limit_s=300.0)
    assert latest(run).hang is None  # the clocks may differ
    progress(run, step=3, at=NOW - 481, phase="training", limit_s=300.0)
    found = latest(run).hang
    assert found is not None
    assert (found.ranks, found.nodes, found.over_s) == ((), (), 181)
    assert "rank 0 has not got on for 481 s (training, limit 300 s); no node has a mon" in found.why


@pytest.mark.parametrize(
    "content",
    [
        {"step": 3, "at": NOW - 9999},  # of an older version
        {"step": 3, "at": NOW - 9999, "limit_s": None},  # hang.enabled: false
        {"step": 3, "at": "x", "limit_s": 3},
        {"at": NOW - 9999, "phase": "starting", "limit_s": 1200.0},  # tells no steps
        {},
    ],
)
def test_a_word_without_a_limit(run: RunLayout, content: dict[str, Any]) -> None:
    progress(run, **content)
    assert latest(run).hang is None


def test_a_monitor_knows_better(run: RunLayout) -> None:
    progress(run, step=3, at=NOW - 9999, phase="training", limit_s=300.0)
    report(run, 0, rank_report(0, idle_s=1.0))
    assert latest(run).hang is None
    report(run, 0, rank_report(0, idle_s=1.0), at=NOW - 9999)
    found = latest(run).hang
    assert found is not None
    assert "the monitors of its nodes are silent" in found.why


def test_only_the_end_of_a_huge_stack_is_read(run: RunLayout) -> None:
    files = run.attempt(1)
    (files.stacks / "rank-0.txt").write_text("x" * 500_000 + "\n" + dump(LOADING))
    assert vitals.stacks(files)[0].endswith(dump(LOADING))
    assert len(vitals.stacks(files)[0]) <= 200_000


@pytest.mark.parametrize("heard", [(1,), (1, 2)])
def test_workers_that_are_never_started(run: RunLayout, heard: tuple[int, ...]) -> None:
    """A node that booted again is up for the scheduler, and torchrun waits for it for ever."""
    start = {"job_id": "7", "restart": 0, "nodes": "n[1-2]", "started_at": NOW - 1201}
    files = run.attempt(1)
    files.start.write_text(json.dumps(start))
    for number in heard:
        report(run, number)
    found = latest(run).hang
    assert found is not None
    assert found.nodes == (("n2",) if heard == (1,) else ())
    said = "nothing was heard of n2" if heard == (1,) else "all nodes are there"
    assert found.why == f"no worker has begun in 1201 s (limit 1200 s): {said}"
    assert found.over_s == 1.0
    files.start.write_text(json.dumps({**start, "started_at": NOW - 1199}))
    assert latest(run).hang is None


def test_a_script_that_knows_nothing_of_fsdpq_is_not_taken_for_one_that_never_began(
    run: RunLayout,
) -> None:
    files = report(run, 1)
    start = {"job_id": "7", "restart": 0, "nodes": "n[1-2]", "started_at": NOW - 5000}
    files.start.write_text(json.dumps(start))
    log = files.logs / "node-0" / "x" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert latest(run).hang is None
