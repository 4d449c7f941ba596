"""How often and how soon: restarts without a newer checkpoint, and the delay between them. Pure."""

import hashlib

from orchestrator.decide.words import BY_HAND, History
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.launchplan.policy import Policy

# Ends that say something about the program: together they have `max_no_progress`.
PROGRAM = frozenset({Cause.WORKER_ERROR, Cause.TIME_LIMIT, Cause.GONE, Cause.HANG})
# Ends that a restart would only repeat.
FINAL = frozenset(
    {
        Cause.OUT_OF_MEMORY,
        Cause.GPU_MEMORY,
        Cause.CHECKPOINT,
        Cause.CONFIGURATION,
        Cause.NO_PROGRESS,
        Cause.NO_RDMA,
    }
)
# Preemptions, lost nodes and the like say nothing about it, and have no budget by themselves.
JITTER = 0.2


def without_progress(past: History, checkpoint_step: int | None) -> list[str]:
    """Return the causes of the restarts since the newest checkpoint, or since one by hand."""
    causes: list[str] = []
    for restart in reversed(past.restarts):
        if restart.checkpoint_step != checkpoint_step or restart.cause == BY_HAND:
            break
        causes.append(restart.cause)
    return causes


def spent(verdict: Verdict, past: History, checkpoint_step: int | None, policy: Policy) -> str:
    """Return why the run may not be restarted once more for this cause; "" if it may."""
    causes = without_progress(past, checkpoint_step)
    own = causes.count(verdict.cause)
    program = sum(cause in PROGRAM for cause in causes)
    if verdict.cause in PROGRAM and program >= policy.max_no_progress:
        return f"restarted {program} times without a newer checkpoint"
    budget = policy.budgets.get(verdict.cause)
    if budget is not None and own >= budget:
        return f"restarted {own} times for this cause ({verdict.cause}) without a newer checkpoint"
    if (same := _repeats(verdict, past)) >= policy.max_no_progress:
        return f"the same error at the same step {same + 1} times, whatever was saved between"
    return ""


def _repeats(verdict: Verdict, past: History) -> int:
    """Return how many restarts in a row answered the very error, preemptions passed over."""
    if not verdict.signature:
        return 0
    count = 0
    for restart in reversed(past.restarts):
        if restart.cause in (Cause.PREEMPTED, Cause.NOTICE, Cause.NODE_FAILURE):
            continue
        if restart.signature != verdict.signature:
            break
        count += 1
    return count


def delay(verdict: Verdict, past: History, checkpoint_step: int | None, policy: Policy) -> float:
    """Return the seconds to wait after the end; none the first time, then doubled each time.

    The jitter is the run's own, the same for every watcher: runs that fail together (a file system
    that is away) must not come back together.
    """
    if verdict.cause not in policy.budgets and verdict.cause not in PROGRAM:
        return 0.0
    causes = without_progress(past, checkpoint_step)
    times = sum(cause in policy.budgets or cause in PROGRAM for cause in causes)
    return grown(policy.delay_s, times, policy)


def grown(first_s: float, times: int, policy: Policy) -> float:
    """Return ``first_s`` doubled for each time after the first, with the run's jitter."""
    if times == 0:
        return 0.0
    digest = hashlib.sha256(f"{policy.seed} {times}".encode()).digest()[0]
    jitter = 1 + JITTER * (digest / 127.5 - 1) if policy.seed else 1.0
    return min(first_s * 2.0 ** min(times - 1, 30), max(policy.max_delay_s, first_s)) * jitter
