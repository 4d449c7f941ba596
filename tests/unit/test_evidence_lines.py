"""What single lines mean (log_lines.py, nccl_lines.py). Sources stand beside the patterns."""

from __future__ import annotations

import pytest

from orchestrator.evidence import scan
from orchestrator.evidence.batch import BATCH, HINT
from orchestrator.evidence.nccl import NCCL
from orchestrator.evidence.pattern import Pattern
from orchestrator.evidence.stderr import STDERR
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

from .log_lines import LOG_LINES, STEP
from .nccl_lines import NCCL_LINES, H

LINES = [*LOG_LINES, *NCCL_LINES]


def one(table: tuple[Pattern, ...], line: str) -> Finding:
    (found,) = scan.findings([line], table, node="n9" if table is STDERR else "")
    return found


@pytest.mark.parametrize(("table", "line", "kind", "cause", "weight", "node", "suspect"), LINES)
def test_lines(
    table: tuple[Pattern, ...],
    line: str,
    kind: str,
    cause: Cause,
    weight: Weight,
    node: str,
    suspect: bool,
) -> None:
    found = one(table, line)
    assert (found.kind, found.cause, found.weight) == (kind, cause, weight)
    assert (found.node, found.suspect) == (node, suspect)
    assert "{" not in found.what


def test_no_line_of_the_batch_log_is_passed_over() -> None:
    for table, line, *_ in LINES:
        assert table is not BATCH or HINT.search(line)


def test_every_pattern_of_lines_is_tried() -> None:
    for table in (BATCH, STDERR, NCCL):
        tried = {kind for of, _, kind, *_ in LINES if of is table}
        left = {pattern.kind for pattern in table} - tried
        assert left <= ({"xid", "gpu-lost"} if table is STDERR else set())


@pytest.mark.parametrize(
    "line",
    [
        "the prompt was: slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED AT x DUE TO PREEMPTION",
        "he said srun: error: Node failure on n2",
        "step 3: CUDA out of memory is what users ask most",
        "ModuleNotFoundError: No module named 'x'",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE,"
        " NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600020 milliseconds",
        "NCCL WARN NET/IB : Got async event : port error",
        "usage: train.py [-h]",
        "NVRM: Xid (PCI:0000:65:00): 999, what nobody knows",
        "[rank1]: train.py: error: unrecognized arguments: --lr",
        "",
        "\x00" * 5000,
        "x" * 100_000,
    ],
)
def test_the_same_words_in_other_lines_are_none(line: str) -> None:
    for table in (BATCH, STDERR, NCCL):
        assert scan.findings([line], table) == []


def test_a_line_cannot_pretend_to_begin_inside_of_another() -> None:
    for letter in "\r\x0b\x0c\x1c\x85\u2028":
        text = f"[default0]:x{letter}{STEP} PREEMPTION ***"
        assert scan.findings(scan.lines(text), BATCH) == []


def test_what_is_said_a_million_times_is_heard_a_few_times() -> None:
    line = f"{H} misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n1<4>"
    assert len(scan.findings([line] * 5_000, NCCL)) == 16


def test_what_a_line_says_is_put_in_words() -> None:
    watchdog = next(line for _, line, kind, *_ in LINES if kind == "watchdog")
    found = one(STDERR, watchdog)
    assert found.rank == 1
    assert found.what == "waited 600000 ms for the others in ALLREDUCE (sequence number 808)"
    assert "Job prolog failed" in one(BATCH, LINES[9][1]).what


@pytest.mark.parametrize(
    ("table", "line", "peer"),
    [
        (STDERR, "socketProgress: Connection closed by remote peer n1.x<41>", "n1.x<41>"),
        (
            STDERR,
            "socketProgressOpt: Call to recv from 10.0.0.1<33759> failed : Connection reset by"
            " peer",
            "10.0.0.1<33759>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN socketProgress: Connection closed by remote peer n1<4>",
            "n1<4>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN Call to connect to fe80::1%eth0<9> failed : Connection refused",
            "fe80::1%eth0<9>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN NET/IB : Got completion from peer n1<4> with error 12, opcode 2",
            "n1<4>",
        ),
    ],
)
def test_the_other_end_of_a_connection_is_kept(
    table: tuple[Pattern, ...], line: str, peer: str
) -> None:
    found = one(table, line)
    assert found.peer == peer
    assert peer in found.what
