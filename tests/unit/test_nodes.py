"""Which nodes a run leaves out, for how long, and how many at most."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.judging.classify import Cause, Verdict
from orchestrator.judging.nodes import Suspicion, bad_nodes, describe, suspicions
from orchestrator.launchplan.policy import Policy

from .builders import NOW

POLICY = Policy(exclude_after=2, forget_s=1000.0, max_excluded=2)


def suspect(
    node: str, cause: Cause = Cause.WORKER_ERROR, ago: float = 10.0, attempt: int | None = None
) -> Suspicion:
    proof = cause in (Cause.GPU_FAILURE, Cause.NODE_CHECK)
    return Suspicion(node, cause, NOW - ago, attempt, proof)


def names(*suspicions: Suspicion, policy: Policy = POLICY) -> list[str]:
    return [node.node for node in bad_nodes(suspicions, policy, now=NOW)]


@pytest.mark.parametrize("cause", [Cause.GPU_FAILURE, Cause.NODE_CHECK])
def test_proof_counts_at_once(cause: Cause) -> None:
    assert names(suspect("n1", cause)) == ["n1"]


@pytest.mark.parametrize("cause", [Cause.WORKER_ERROR, Cause.FABRIC, Cause.HANG, Cause.LAUNCH])
def test_everything_else_counts_from_the_second_time_on_the_same_node(cause: Cause) -> None:
    assert names(suspect("n1", cause, attempt=1)) == []
    assert names(suspect("n1", cause, attempt=1), suspect("n2", cause, attempt=2)) == []
    assert names(suspect("n1", cause, attempt=1), suspect("n1", cause, attempt=2)) == ["n1"]


def test_two_ranks_of_one_attempt_are_one_failure() -> None:
    assert names(suspect("n1", attempt=3), suspect("n1", attempt=3)) == []


@pytest.mark.parametrize(("ago", "found"), [(999.0, ["n1"]), (1001.0, [])])
def test_a_suspicion_is_forgotten_after_a_time(ago: float, found: list[str]) -> None:
    assert names(suspect("n1", Cause.GPU_FAILURE, ago)) == found


def test_a_node_stays_out_until_its_newest_suspicion_is_forgotten() -> None:
    (node,) = bad_nodes(
        [suspect("n1", Cause.GPU_FAILURE, 900), suspect("n1", Cause.FABRIC, 100)], POLICY, now=NOW
    )
    assert (node.cause, node.times, node.until) == (Cause.GPU_FAILURE, 2, NOW + 900)


def test_never_more_nodes_than_allowed_and_the_worst_first() -> None:
    weak = [suspect("n1", ago=1, attempt=1), suspect("n1", ago=1, attempt=2)]
    proof = [suspect("n2", Cause.GPU_FAILURE, 500), suspect("n3", Cause.NODE_CHECK, 400)]
    assert names(*weak, *proof) == ["n3", "n2"]
    none = dataclasses.replace(POLICY, max_excluded=0)
    assert names(*weak, *proof, policy=none) == []


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        (Verdict(Cause.GPU_FAILURE, "", suspects=("n1",), node="n2"), [("n1", True)]),
        (Verdict(Cause.FABRIC, "", suspects=("n1", "n2")), [("n1", False), ("n2", False)]),
        (Verdict(Cause.WORKER_ERROR, "", node="n2"), [("n2", False)]),
        # A GPU that failed somewhere, and nothing says that it was this node's.
        (Verdict(Cause.GPU_FAILURE, "", node="n2"), [("n2", False)]),
        (Verdict(Cause.GPU_MEMORY, "", node="n2"), []),
        (Verdict(Cause.CONFIGURATION, "", suspects=("n1",)), []),
        (Verdict(Cause.PREEMPTED, "", node="n1"), []),
        (Verdict(Cause.WORKER_ERROR, ""), []),
    ],
)
def test_what_an_end_says_against_nodes(verdict: Verdict, found: list[tuple[str, bool]]) -> None:
    made = suspicions(verdict, at=NOW, attempt=3)
    assert [(item.node, item.proof) for item in made] == found
    assert all(item.attempt == 3 for item in made)


def test_said_in_one_line() -> None:
    bad = bad_nodes([suspect("n2", Cause.GPU_FAILURE)], POLICY, now=NOW)
    assert describe(bad) == "n2 (GPU failure)"


@pytest.mark.parametrize("cause", [Cause.NOTICE, Cause.PREEMPTED])
def test_a_node_that_the_cloud_takes_back_is_left_out_for_a_while(cause: Cause) -> None:
    """And a notice that names no node speaks against none."""
    policy = dataclasses.replace(POLICY, forget_s=86_400.0)
    gone = Verdict(cause, "reclaimed", suspects=("n1",), node="n2")
    for ago, found in ((10.0, ["n1"]), (899.0, ["n1"]), (901.0, [])):
        assert names(*suspicions(gone, at=NOW - ago, attempt=1), policy=policy) == found
    assert suspicions(Verdict(cause, "stopped", node="n2"), at=NOW, attempt=1) == []
