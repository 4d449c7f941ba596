"""What to do about a job whose network is less than its run requires (`require_rdma`). Pure.

The monitor of the first node finds out, tells the ranks to save and stop, and ends what does not
listen. What is decided here is for a job without one, or with one that died.
"""

from orchestrator.decide import budget
from orchestrator.decide.words import (
    Action,
    History,
    Observation,
    Over,
    ProveNetwork,
    Replace,
    TellStop,
    Wait,
)
from orchestrator.judging.classify import Verdict, too_little
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.attempt import Attempt
from orchestrator.scheduler import JobRecord

# The monitor looks after a minute or the first step.
PROVE_S = 150.0
LOOK_AGAIN_S = 300.0
# How long the monitor's own notice has before a watcher sends one, and then that one.
HEED_S = 60.0
GO_ON_S = 900.0


def decide_network(
    job: JobRecord, attempt: Attempt | None, seen: Observation, past: History, policy: Policy
) -> Action | None:
    """Return what to do about the network of a running attempt; None where nothing is."""
    if attempt is None or not policy.require_rdma:
        return None
    if attempt.network is None or attempt.network.verdict == "unknown":
        return _prove(attempt, seen, past)
    told = too_little(attempt)
    if told is None:
        return None
    waits = Wait("stopping", f"{told.why}; the job was told to save and stop")
    if seen.now - attempt.network.at < HEED_S:
        return waits
    told_at = dict(past.told_to_stop).get(attempt.number)
    if told_at is None:
        return TellStop(job.job_id, attempt.number, told.why)
    return waits if seen.now - told_at < GO_ON_S else _end(job, told, seen, past, policy)


def _prove(attempt: Attempt, seen: Observation, past: History) -> ProveNetwork | None:
    looked_at = dict(past.looked).get(attempt.number)
    started_at = attempt.started_at
    young = started_at is None or seen.now - started_at < PROVE_S
    if young or (looked_at is not None and seen.now - looked_at < LOOK_AGAIN_S):
        return None
    return ProveNetwork(attempt.number, f"nobody in attempt {attempt.number} looked at its network")


def _end(job: JobRecord, told: Verdict, seen: Observation, past: History, policy: Policy) -> Action:
    """Return how a job ends that was told to stop and went on."""
    why = f"{told.why}, and the job did not stop by itself"
    spent = budget.spent(told, past, seen.checkpoint_step, policy)
    if not told.suspects or spent:
        said = f"{why}. {told.advice}"
        return Over("failed", said, told.cause, record=True, job_id=job.job_id)
    key = f"{job.job_id}.{job.restart or 0}.network"
    return Replace(key, job.job_id, told.cause, why, requeue=True, suspects=told.suspects)
