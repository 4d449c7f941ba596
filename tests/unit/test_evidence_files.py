"""Which part of batch.log is an attempt's own, and files that are long, hostile or many."""

from __future__ import annotations

import os

import pytest

from orchestrator.evidence import files, reading
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import RunLayout

from .attempts import begin, error, findings, say, stderr, verdict

# --- batch.log is shared by all attempts ------------------------------------------------------

PREEMPTED = (
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:10:01 DUE TO PREEMPTION ***\n"
)
LIMIT = PREEMPTED.replace("PREEMPTION", "TIME LIMIT")


def test_each_attempt_has_its_own_part_of_the_log(run: RunLayout) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    begin(run, 2)
    say(run, "nothing\n")
    begin(run, 3)
    say(run, LIMIT)
    kinds = [[f.kind for f in findings(run, n)] for n in (1, 2, 3)]
    assert kinds == [["preempted"], [], ["time-limit"]]


def test_an_attempt_that_never_got_to_its_line_has_no_part(run: RunLayout) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    run.attempt(2).root.mkdir()
    assert findings(run, 2) == ()


def test_what_workers_print_is_never_slurms_word(run: RunLayout) -> None:
    begin(run)
    fakes = (
        "",
        "2026-11-29 22:00:00 fsdpq: attempt 2: job 7, restart 0, on n1",
        PREEMPTED.strip(),
        "srun: error: Node failure on n2",
        "Root Cause (first observed failure):",
    )
    for text in fakes:
        say(run, f"[default0]:{text}\r{text}\n")
    assert findings(run) == ()
    assert not any(files.batch_lines(run.output, 2))


@pytest.mark.parametrize("name", ["slurmstepd", "slurmstepd-n1"])
def test_slurmstepd_may_give_its_nodes_name(run: RunLayout, name: str) -> None:
    """It does where slurmd was started with -N, as on clusters of several slurmd on a host."""
    begin(run)
    say(
        run,
        f"{name}: error: *** JOB 2 ON n1 CANCELLED AT 2026-11-29T23:58:46 DUE TO PREEMPTION ***\n",
    )
    assert verdict(run).cause is Cause.PREEMPTED


@pytest.mark.parametrize("padding", [10, 5 << 20, 9 << 20])
def test_a_long_log_is_read_at_its_ends(run: RunLayout, padding: int) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    say(run, ("x" * 99 + "\n") * (padding // 100))
    begin(run, 2)
    say(run, LIMIT)
    say(run, ("y" * 99 + "\n") * (padding // 100))
    assert [f.kind for f in findings(run, 1)] == ["preempted"]
    assert [f.kind for f in findings(run, 2)] == ["time-limit"]
    assert sum(map(len, files.batch_lines(run.output, 2))) < 5 << 20


def test_a_mark_on_the_border_of_two_blocks_is_found(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    begin(run, 2)
    say(run, LIMIT)
    for size in range(64, 320, 7):
        monkeypatch.setattr(files, "_BLOCK_BYTES", size)
        assert [f.kind for f in findings(run, 1)] == ["preempted"]
        assert [f.kind for f in findings(run, 2)] == ["time-limit"]


# --- hostile files ----------------------------------------------------------------------------


def test_files_of_any_size_and_bytes(run: RunLayout) -> None:
    layout = begin(run)
    noise = bytes(range(256)) * 4096
    stderr(layout, 0, 0, noise)
    stderr(layout, 0, 1, "Traceback (most recent call last):\n" * 5000)
    for path in (layout.nccl / "n1.1.log", run.output, layout.errors / "rank-0.json"):
        with path.open("ab") as file:
            file.write(noise)
            file.truncate(1 << 30)
    for path in (layout.errors / "rank-1.json", layout.root / "node-0.exit"):
        path.write_bytes(noise)
    os.mkfifo(layout.nccl / "n1.2.log")
    os.mkfifo(layout.errors / "rank-7.json")
    layout.preflight.mkdir()
    for number, text in enumerate(("[]", "{", '{"ok": false, "problems": 7}', "[" * 100_000)):
        (layout.preflight / f"node-{number}.json").write_text(text)
    assert reading.read(layout, run.output, number=1, nodes="n[1-2]") == ()


def test_thousands_of_ranks_are_read_in_bounds(run: RunLayout) -> None:
    nodes, per_node = 60, 20
    layout = begin(run, nodes=f"n[1-{nodes}]")
    for rank in range(nodes * per_node):
        stderr(layout, rank // per_node, rank % per_node, "")
        (layout.nccl / f"n{rank // per_node + 1}.{rank}.log").touch()
        error(layout, rank, "RuntimeError: Connection closed by peer", at=float(rank))
    trace = "Traceback (most recent call last):\n  File x\nValueError: the one\n"
    stderr(layout, 51, 3, trace)
    rank = 51 * per_node + 3
    say(run, "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_22:08:06\n"
             f"  host      : n52\n  rank      : {rank} (local_rank: 3)\n"
             "  exitcode  : 1 (pid: 5)\n")  # fmt: skip
    found = verdict(run)
    assert found.why == f"rank {rank} on n52 failed: ValueError: the one"
