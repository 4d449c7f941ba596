"""Combinations of evidence -> cause, sentence, suspects, signature."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.judging.classify import Cause, classify, of_attempt, past_verdict
from orchestrator.rundir.attempt import Weight
from orchestrator.scheduler import JobState

from .builders import attempt, finding, job, rank_error

S = JobState
ECC = "CUDA error: uncorrectable ECC error encountered"
LOST = finding("node-failure", Cause.NODE_FAILURE, Weight.SLURM, node="n2", suspect=True)
PREEMPTED = finding("preempted", Cause.PREEMPTED, Weight.SLURM)
LIMIT = finding("time-limit", Cause.TIME_LIMIT, Weight.SLURM)
KILLED = finding("signal", rank=3, node="n2", what="was ended by SIGKILL and left no error")
OOM = finding("oom-kill", Cause.OUT_OF_MEMORY, Weight.ROOT, node="n1")
ECHO = finding("echo", weight=Weight.ECHO, rank=0, node="n1", what="Connection closed by peer")
HUNG = finding("watchdog", Cause.HANG, Weight.MAYBE, rank=0, node="n1")
REQUEUED = finding("requeued", Cause.NOTICE, Weight.ECHO)
BROKEN = finding("xid", Cause.GPU_FAILURE, Weight.ROOT, node="n1", suspect=True)

TABLE: list[tuple[JobState | None, dict[str, Any], Cause, tuple[str, ...]]] = [
    # Slurm's state, the attempt, cause, suspects
    (S.FAILED, {}, Cause.WORKER_ERROR, ()),
    (None, {}, Cause.GONE, ()),
    (S.CANCELLED, {"findings": (OOM,)}, Cause.CANCELLED, ()),
    (S.FAILED, {"outcome": "stopped", "findings": (OOM,)}, Cause.NOTICE, ()),
    (S.FAILED, {"outcome": "no_checkpoint", "reason": "none"}, Cause.CHECKPOINT, ()),
    (S.FAILED, {"action": "stop", "findings": (OOM,)}, Cause.NO_PROGRESS, ()),
    # The queue has forgotten it: its user may have cancelled it, whatever the log says.
    (None, {"action": "none", "noticed": True, "findings": (LIMIT,)}, Cause.NO_PROGRESS, ()),
    # Slurm's state, with what the logs know of where.
    (S.OUT_OF_MEMORY, {"findings": (KILLED,)}, Cause.OUT_OF_MEMORY, ()),
    (S.NODE_FAIL, {"findings": (LOST, ECHO)}, Cause.NODE_FAILURE, ("n2",)),
    (S.NODE_FAIL, {"error": rank_error("VoteError: x")}, Cause.NODE_FAILURE, ()),
    (S.TIMEOUT, {"findings": (BROKEN,)}, Cause.TIME_LIMIT, ()),
    (S.LAUNCH_FAILED, {}, Cause.LAUNCH, ()),
    # Slurm's word in the log.
    (S.FAILED, {"findings": (LOST, ECHO)}, Cause.NODE_FAILURE, ("n2",)),
    (None, {"findings": (PREEMPTED, KILLED)}, Cause.PREEMPTED, ()),
    (S.COMPLETED, {"findings": (LIMIT,)}, Cause.TIME_LIMIT, ()),
    # The logs.
    (S.FAILED, {"findings": (OOM, KILLED)}, Cause.OUT_OF_MEMORY, ()),
    (S.FAILED, {"findings": (KILLED, ECHO)}, Cause.WORKER_ERROR, ()),
    (S.FAILED, {"findings": (BROKEN, KILLED)}, Cause.GPU_FAILURE, ("n1",)),
    (S.FAILED, {"findings": (HUNG, ECHO)}, Cause.HANG, ()),
    (S.FAILED, {"findings": (ECHO,)}, Cause.WORKER_ERROR, ()),
    (S.FAILED, {"findings": (REQUEUED,)}, Cause.WORKER_ERROR, ()),
    # The error file alone, as a quick look has it.
    (S.FAILED, {"error": rank_error("ValueError: x")}, Cause.WORKER_ERROR, ()),
    (S.FAILED, {"error": rank_error(f"AcceleratorError: {ECC}")}, Cause.GPU_FAILURE, ("n2",)),
    (
        S.FAILED,
        {"error": rank_error(f"X: {ECC}", node="n2.cluster.local")},
        *(Cause.GPU_FAILURE, ("n2",)),
    ),
    (S.FAILED, {"error": rank_error(f"X: {ECC}", node="elsewhere")}, Cause.GPU_FAILURE, ()),
    (
        S.FAILED,
        {"error": rank_error("OutOfMemoryError: CUDA out of memory")},
        *(Cause.GPU_MEMORY, ()),
    ),
    (S.FAILED, {"error": rank_error("OSError: [Errno 28] x")}, Cause.DISK_FULL, ()),
    (
        S.FAILED,
        {"error": rank_error("ModuleNotFoundError: No module named 'x'"), "last_step": 9},
        *(Cause.WORKER_ERROR, ()),
    ),
    (
        S.FAILED,
        {"error": rank_error("ModuleNotFoundError: No module named 'x'"), "resumed": 9},
        *(Cause.CONFIGURATION, ()),
    ),
]


@pytest.mark.parametrize(("state", "said", "cause", "suspects"), TABLE)
def test_the_cause(
    state: JobState | None, said: dict[str, Any], cause: Cause, suspects: tuple[str, ...]
) -> None:
    record = None if state is None else job(state=state)
    found = classify(record, attempt(**said))
    assert (found.cause, found.suspects) == (cause, suspects)
    assert found.why
    assert "\n" not in found.why


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (KILLED, "rank 3 on n2 was ended by SIGKILL and left no error"),
        (OOM, "n1: it was oom-kill"),
        (PREEMPTED, "it was preempted"),
        (HUNG, "rank 0 on n1 failed: it was watchdog"),
        (
            ECHO,
            "rank 0 on n1 lost another rank, and no log says why that one ended: Connection closed"
            " by peer",
        ),
        (finding(rank=1, node="n1", step=7, what="x"), "rank 1 on n1 failed: x (after step 7)"),
        (finding(rank=1, what="x"), "rank 1 failed: x"),
    ],
)
def test_the_sentence(said: Any, why: str) -> None:
    assert classify(job(state=S.FAILED), attempt(findings=(said,))).why == why


def test_slurm_could_not_start_the_script() -> None:
    found = classify(job(state=S.FAILED, signal=53, nodes="n[3-4]"), None)
    assert (found.cause, found.node, found.suspects) == (Cause.LAUNCH, "n3", ())
    assert "could not open batch.log" in found.why
    found = classify(job(state=S.FAILED, reason="JobLaunchFailure", nodes="n[3-4]"), None)
    assert (found.cause, found.node) == (Cause.LAUNCH, "n3")


def test_never_all_nodes_are_suspected() -> None:
    both = tuple(
        finding("xid", Cause.GPU_FAILURE, Weight.ROOT, node=n, suspect=True) for n in ("n1", "n2")
    )
    assert classify(job(state=S.FAILED), attempt(findings=both)).suspects == ()
    assert classify(job(state=S.FAILED), attempt(findings=both[:1], nodes="n1")).suspects == ("n1",)


def test_the_node_of_the_first_failure_is_told_apart_from_suspects() -> None:
    found = classify(job(state=S.FAILED), attempt(error=rank_error("ValueError: x")))
    assert (found.node, found.suspects) == ("n2", ())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("ValueError: bad batch 17", 41, 3), ("ValueError: bad batch 99", 41, 5), True),
        (("ValueError: bad batch 17", 41, 3), ("ValueError: bad batch 17", 42, 3), False),
        (("ValueError: x", 41, 3), ("KeyError: x", 41, 3), False),
        (("OSError: /a/b/c.bin is torn", 1, 0), ("OSError: /a/d is torn", 1, 0), True),
        (("RuntimeError: at 0x7f12ab", 1, 0), ("RuntimeError: at 0x99cd", 1, 0), True),
    ],
)
def test_the_same_error_at_the_same_step(one: Any, other: Any, same: bool) -> None:
    signatures = [
        classify(
            job(state=S.FAILED), attempt(error=rank_error(text, step=step, rank=rank))
        ).signature
        for text, step, rank in (one, other)
    ]
    assert (signatures[0] == signatures[1]) is same
    assert all(signatures)


def test_an_error_before_the_first_step_has_a_signature_too() -> None:
    found = of_attempt(attempt(error=rank_error("ValueError: x", step=None)))
    assert found is not None
    assert found.signature == "exception: ValueError: x @ start"
    assert of_attempt(attempt()) is None


@pytest.mark.parametrize(
    ("resumed", "saved", "words"),
    [
        (0, 40, "stopped for a notice and saved"),
        (40, 40, "stopped for a notice and had nothing new to save"),
        (None, None, "stopped for a notice and had nothing new to save"),
    ],
)
def test_what_was_not_saved_is_not_called_saved(
    resumed: int | None, saved: int | None, words: str
) -> None:
    one = attempt(outcome="stopped", noticed=True, resumed=resumed, saved_step=saved)
    assert classify(job(S.FAILED), one).why == f"attempt 1 {words}"
    assert past_verdict(one).why == f"attempt 1 {words}"
