"""Tracebacks, and the reports that torchrun writes when a rank ends."""

from __future__ import annotations

import pytest

from orchestrator.evidence import reports, tracebacks
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import RunLayout

from .attempts import DATA, begin, error, played, stderr, verdict

# --- tracebacks -------------------------------------------------------------------------------

TRACE = "Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\n    f()\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("all is well\n", []),
        (TRACE + "ValueError: bad\n", ["ValueError: bad"]),
        (TRACE + "a.b.MyError\n", ["a.b.MyError"]),
        (TRACE + "KeyboardInterrupt\n", ["KeyboardInterrupt"]),
        (
            "[rank3]: " + TRACE.replace("\n", "\n[rank3]: ") + "ValueError: bad\n",
            ["ValueError: bad"],
        ),
        (TRACE + "ValueError: one\ntwo\n\nthree\n", ["ValueError: one\ntwo"]),
        # One that was survived, long ago.
        (TRACE + "ValueError: old\n" + "step 7\n" * 100, []),
        (TRACE + "ValueError: old\n" + "step 7\n" * 100 + TRACE + "KeyError: 1\n", ["KeyError: 1"]),
        (TRACE + "ValueError: bad\n" + "frame #1: x (0x7f)\n" * 100, ["ValueError: bad"]),
        (
            TRACE
            + "OSError: [Errno 28] No space\n\nThe above exception was the direct cause of the"
            + " following exception:\n\n"
            + TRACE
            + "RuntimeError: save failed\n",
            ["RuntimeError: save failed", "OSError: [Errno 28] No space"],
        ),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            "  what():  [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an"
            " illegal memory access was encountered\n",
            [
                "RuntimeError: [Rank 3] NCCL watchdog thread terminated with exception: CUDA error:"
                " an illegal memory access was encountered"
            ],
        ),
        (
            "  File 'x.py', line 1\n    def f(:\n          ^\nSyntaxError: bad\n",
            ["SyntaxError: bad"],
        ),
        # Cut off in the middle.
        (TRACE, []),
        ("    f()\nValueError: the head of it was cut off\n", []),
        (TRACE + "not an exception at all\n", []),
    ],
)
def test_tracebacks(text: str, found: list[str]) -> None:
    assert tracebacks.last(text) == found


def test_the_cause_of_an_exception_counts(run: RunLayout) -> None:
    layout = begin(run)
    trace = (
        TRACE
        + "OSError: [Errno 28] No space left on device\n\nDuring handling of the above exception,"
        + " another exception occurred:\n\n"
        + TRACE
        + "RuntimeError: save failed\n"
    )
    error(layout, 3, "RuntimeError: save failed", traceback=trace)
    assert verdict(run).cause is Cause.DISK_FULL


def test_what_a_killed_rank_survived_before_is_not_its_end(run: RunLayout) -> None:
    layout = played(run, "kill")
    stderr(layout, 0, 1, TRACE + "ValueError: survived\n")
    assert "SIGKILL" in verdict(run).why


def test_words_that_a_program_prints_are_not_its_end(run: RunLayout) -> None:
    layout = begin(run)
    stderr(layout, 0, 0, "prompt: CUDA out of memory. Tried to allocate 2 GiB\n")
    found = verdict(run)
    assert found.cause is Cause.WORKER_ERROR
    assert "no rank left an error" in found.why


# --- torchrun's reports -----------------------------------------------------------------------


def test_reports_of_several_nodes() -> None:
    lines = (DATA / "kill" / "batch.log").read_text(encoding="utf-8").split("\n")
    (one,) = reports.exits(lines)
    assert (one.rank, one.local_rank, one.host, one.code) == (1, 1, "localhost", -9)
    assert (one.signal, one.killed) == ("SIGKILL", True)
    assert reports.exits(lines + lines) == [one, one]


@pytest.mark.parametrize(
    "text",
    [
        "Root Cause (first observed failure):",
        "Root Cause (first observed failure):\n[0]:\n  rank      : x (local_rank: 1)\n  exitcode:",
        "Root Cause (first observed failure):\n" + "noise\n" * 50 + "  exitcode  : 1 (pid: 1)",
    ],
)
def test_reports_that_are_cut_off(text: str) -> None:
    assert reports.exits(text.split("\n")) == []


@pytest.mark.parametrize(
    ("code", "signal", "weight"),
    [
        (-9, "SIGKILL", Weight.OWN),
        (-11, "SIGSEGV", Weight.OWN),
        (-7, "SIGBUS", Weight.OWN),
        (-6, "SIGABRT", Weight.MAYBE),
        (-15, "signal 15", Weight.ECHO),
        (-64, "signal 64", Weight.OWN),
        (1, "", Weight.MAYBE),
        (3, "", Weight.MAYBE),
    ],
)
def test_exit_codes_and_signals_survive(code: int, signal: str, weight: Weight) -> None:
    ended = reports.RankExit(3, 1, "n2", code, 5.0)
    found = reports.finding(ended, node="n2")
    assert found.weight is weight
    assert (signal or f"exit code {code}") in found.what
