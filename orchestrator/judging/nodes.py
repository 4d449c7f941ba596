"""Which nodes a run had better leave out: from what was said against them, and when. Pure.

Evidence that only a broken node gives (ECC errors, a failed node check) counts at once, everything
else from its second time on the same node. Suspicions are forgotten after a day, and only a few
nodes are left out at a time, the worst and newest first: a run must never make itself unrunnable.

A node that the cloud takes back is left out too, but not for long: the scheduler may start the job
there again before it notices, and later a new machine may have the name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.judging.classify import Cause, Verdict
from orchestrator.launchplan.policy import Policy

# Ends that say by themselves that the node is broken, where they name it.
_PROOF = frozenset({Cause.GPU_FAILURE, Cause.NODE_CHECK})
# Ends whose named nodes the cloud takes back: they are not broken, they go.
_GOES = frozenset({Cause.NOTICE, Cause.PREEMPTED})
_GONE_S = 900.0
# Ends that another node may well not have.
_MAYBE = frozenset(
    {
        *_PROOF,
        *_GOES,
        Cause.FABRIC,
        Cause.HANG,
        Cause.LAUNCH,
        Cause.NODE_FAILURE,
        Cause.WORKER_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Something that speaks against a node: how an attempt ended there, and when it did.

    Attributes:
        proof: Whether the node alone can be to blame.
    """

    node: str
    cause: Cause
    at: float
    attempt: int | None = None
    proof: bool = False


@dataclass(frozen=True, slots=True)
class BadNode:
    """A node that is left out.

    Attributes:
        until: When that ends, in seconds since 1970, if nothing else happens there.
        times: How often it was suspected.
        proof: Whether one of these times it alone could be to blame.
    """

    node: str
    cause: Cause
    times: int
    until: float
    proof: bool = False


def suspicions(verdict: Verdict, *, at: float, attempt: int | None) -> list[Suspicion]:
    """Return what an end says against nodes.

    Those that the evidence names come first; without any, the node of the rank that failed first
    is remembered: that it comes again speaks against it.
    """
    if verdict.cause not in _MAYBE:
        return []
    if not verdict.suspects and verdict.cause not in _GOES:
        return [Suspicion(verdict.node, verdict.cause, at, attempt)] if verdict.node else []
    proof = verdict.cause in _PROOF | _GOES
    return [Suspicion(node, verdict.cause, at, attempt, proof) for node in verdict.suspects]


def bad_nodes(suspicions: Iterable[Suspicion], policy: Policy, *, now: float) -> list[BadNode]:
    """Return the nodes to leave out, the worst first; never more than the policy allows."""
    fresh: dict[str, list[Suspicion]] = {}
    for item in suspicions:
        if now < _forgotten_at(item, policy):
            fresh.setdefault(item.node, []).append(item)
    found = [_judged(node, items, policy) for node, items in fresh.items()]
    bad = [node for node in found if node is not None]
    bad.sort(key=lambda node: (not node.proof, -node.until, node.node))
    return bad[: policy.max_excluded]


def _forgotten_at(item: Suspicion, policy: Policy) -> float:
    keep_s = min(_GONE_S, policy.forget_s) if item.cause in _GOES else policy.forget_s
    return item.at + keep_s


def left_out(items: Iterable[Suspicion], policy: Policy, *, now: float) -> tuple[str, ...]:
    """Return the names of the nodes to leave out, the worst first: a cut list keeps those."""
    return tuple(bad.node for bad in bad_nodes(items, policy, now=now))


def _judged(node: str, items: list[Suspicion], policy: Policy) -> BadNode | None:
    proof = [item for item in items if item.proof]
    newest = max(proof or items, key=lambda item: item.at)
    # Two ranks of one attempt are one failure.
    times = len({(item.attempt, item.at if item.attempt is None else 0.0) for item in items})
    if not proof and times < policy.exclude_after:
        return None
    until = max(_forgotten_at(item, policy) for item in items)
    return BadNode(node, newest.cause, times, until, bool(proof))


def describe(nodes: Iterable[BadNode]) -> str:
    """Return the nodes that are left out and why, in one line.

    >>> describe([BadNode("n7", Cause.GPU_FAILURE, 1, 0.0), BadNode("n9", Cause.HANG, 2, 0.0)])
    'n7 (GPU failure), n9 (hang, 2 times)'
    """

    def word(node: BadNode) -> str:
        often = f", {node.times} times" if node.times > 1 else ""
        return f"{node.node} ({node.cause}{often})"

    return ", ".join(word(node) for node in nodes)
