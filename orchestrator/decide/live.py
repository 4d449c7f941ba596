"""What to do about a job that waits or runs. Pure."""

from orchestrator.decide import budget
from orchestrator.decide.network import decide_network
from orchestrator.decide.reasons import advice
from orchestrator.decide.words import (
    Action,
    Exclude,
    History,
    Observation,
    Over,
    Replace,
    StartNow,
    Wait,
)
from orchestrator.evidence import errors
from orchestrator.judging.classify import Cause, Verdict, of_attempt
from orchestrator.judging.nodes import BadNode, bad_nodes, describe, left_out
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.attempt import Attempt, Weight
from orchestrator.scheduler import JobRecord, JobState

# Reasons of squeue for a job that waits for a human, and never starts by itself.
_HELD = (
    "JobHeldUser",
    "JobHeldAdmin",
    "job requeued in held state",
    "JobHoldMaxRequeue",
    "DependencyNeverSatisfied",
    "BadConstraints",
)
# Slurm held it because a node would not start it: it will not start by itself either.
_LAUNCH_HELD = ("launch failed requeued held", "launch_failed_requeued_held")
# Reasons of squeue that say how a job ended; measured on 22.05, a requeued job shows them on.
_REASONS_OF_ENDS = frozenset(
    {"NonZeroExitCode", "RaisedSignal", "TimeLimit", "NodeDown", "JobLaunchFailure", "OutOfMemory"}
)
# Reasons for which fewer nodes help.
_STARVED = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes required")
START_NOW_TRIES = 5
EXCLUDE_TRIES = 3
# A hung attempt is given this long, from when it is found, to write down where its ranks stand.
COLLECT_S = 30.0


def decide_live(job: JobRecord, seen: Observation, past: History, policy: Policy) -> Action:
    """Return what to do about a run whose ``job`` is alive."""
    if job.state is JobState.UNKNOWN:
        return Wait("unknown", f"Slurm calls job {job.job_id} by a word that fsdpq does not know")
    if job.state is JobState.PENDING:
        return _pending(job, seen, past, policy)
    if job.state in (JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD):
        return _held(job, job.state)
    if job.state is JobState.COMPLETING:
        return Wait("stopping", f"job {job.job_id} is completing", soon=True)
    if job.state is JobState.CONFIGURING:
        return Wait("starting", f"job {job.job_id} waits for its nodes to boot")
    attempt = attempt_of(job, seen.attempt)
    if job.state is JobState.RUNNING and attempt is not None and attempt.hang is not None:
        return _hung(job, attempt, seen, past, policy)
    if job.state is JobState.RUNNING and (
        other := decide_network(job, attempt, seen, past, policy)
    ):
        return other
    return Wait("running", f"job {job.job_id} is {job.state.lower()} on {job.nodes or '?'}")


def _held(job: JobRecord, why: str) -> Wait:
    what = f"look at its nodes, then `scontrol release {job.job_id}`"
    return Wait("held", f"job {job.job_id} is held ({why}); {what}")


def attempt_of(job: JobRecord | None, attempt: Attempt | None) -> Attempt | None:
    """Return the attempt if it is one of the job's; a job may never have started."""
    if job is None or attempt is None:
        return attempt
    same_start = job.restart is None or job.restart == attempt.restart
    return attempt if attempt.job_id == job.job_id and same_start else None


def _hung(
    job: JobRecord, attempt: Attempt, seen: Observation, past: History, policy: Policy
) -> Action:
    assert attempt.hang is not None
    if attempt.hang.over_s < COLLECT_S:
        return Wait("running", f"{attempt.hang.why}; its ranks write down where they stand")
    verdict = _failed(attempt, policy)
    verdict = verdict or Verdict(Cause.HANG, attempt.hang.why, suspects=attempt.hang.nodes)
    if verdict.cause in budget.FINAL:
        said = f"{verdict.why}. {verdict.advice}".removesuffix(". ")
        return Over("failed", said, verdict.cause, record=True, job_id=job.job_id)
    if why := budget.spent(verdict, past, seen.checkpoint_step, policy):
        said = f"{verdict.why}. {why[0].upper()}{why[1:]}, so it is not tried again"
        return Over("failed", said, verdict.cause, record=True, job_id=job.job_id)
    return Replace(
        f"{job.job_id}.{job.restart or 0}.hang",
        job.job_id,
        verdict.cause,
        verdict.why,
        requeue=True,
        suspects=verdict.suspects,
        signature=verdict.signature,
    )


def _failed(attempt: Attempt, policy: Policy) -> Verdict | None:
    """Return which error the others hang after; None where no rank wrote down one of its own.

    torchrun lives on after a rank's error for as long as that rank's process does, a thread of a
    save for instance.
    """
    error = attempt.error
    if error is None or errors.read(error.exception).weight >= Weight.MAYBE:
        return None
    told = of_attempt(attempt)
    # A smaller micro-batch is an answer to a job that has ended; until then it is a hang.
    smaller = policy.on_gpu_memory == "smaller_micro_batch"
    return None if told and told.cause is Cause.GPU_MEMORY and smaller else told


def _pending(job: JobRecord, seen: Observation, past: History, policy: Policy) -> Action:
    if other := _replaced(job, seen, past, policy):
        return other
    if any(word in job.reason for word in (*_HELD, *_LAUNCH_HELD)):
        return _held(job, job.reason)
    if other := _excluded(job, seen, past, policy):
        return other
    # An update can be lost (2 of 14 were, with Slurm's default scheduler), so it is repeated.
    if (
        job.reason == "BeginTime"
        and past.hurried.count((job.job_id, job.restart)) < START_NOW_TRIES
    ):
        why = f"job {job.job_id} was requeued and waits for its begin time"
        return StartNow(job.job_id, job.restart, why)
    why = f"job {job.job_id} is pending: {job.reason or 'not yet looked at'}"
    why += f" ({said})" if (said := advice(job.reason)) else ""
    # Slurm gives a job that it has just put back no reason until its scheduler comes by, or leaves
    # it that of its last end.
    soon = not job.reason or job.reason in _REASONS_OF_ENDS
    return Wait("requeued", why, soon=soon) if job.restart else Wait("pending", why)


def _replaced(job: JobRecord, seen: Observation, past: History, policy: Policy) -> Action | None:
    """Return how another job takes the place of one that cannot or should not start as it is."""
    key = f"{job.job_id}.{job.restart or 0}"
    if any(word in job.reason for word in _LAUNCH_HELD):
        verdict = Verdict(Cause.LAUNCH, f"job {job.job_id} is held: a node could not start it")
        if not budget.spent(verdict, past, seen.checkpoint_step, policy):
            nodes = _suspects(seen, past, policy)
            return Replace(f"{key}.launch", job.job_id, Cause.LAUNCH, verdict.why, exclude=nodes)
        return None
    if job.reason == "BadConstraints" and job.restart:
        why = f"job {job.job_id} was put back by Slurm and can never start (BadConstraints)"
        verdict = Verdict(Cause.NODE_FAILURE, why)
        return Replace(f"{key}.constraints", job.job_id, verdict.cause, why)
    return _resized(job, key, seen, past, policy)


def _resized(
    job: JobRecord, key: str, seen: Observation, past: History, policy: Policy
) -> Replace | None:
    """Return how an elastic run shrinks when its queue is starved, and grows at a restart."""
    if len(policy.sizes) < 2:
        return None
    nodes = _suspects(seen, past, policy)
    full = policy.sizes[0]
    size = dict(past.sizes).get(job.job_id, full)
    if size < full and job.restart:
        why = f"job {job.job_id} had {size} nodes; back to {full}"
        return Replace(f"{key}.grow", job.job_id, Cause.RESIZED, why, nodes=full, exclude=nodes)
    smaller = next((other for other in policy.sizes if other < size), None)
    waited_s = _waited_s(job, seen)
    if smaller is None or not _starved(job) or waited_s < policy.patience_s:
        return None
    why = (
        f"job {job.job_id} waited {waited_s:.0f} s for {size} nodes ({job.reason}); on with"
        f" {smaller}"
    )
    return Replace(f"{key}.shrink", job.job_id, Cause.RESIZED, why, nodes=smaller, exclude=nodes)


def _suspects(seen: Observation, past: History, policy: Policy) -> tuple[str, ...]:
    return left_out(past.suspicions, policy, now=seen.now)


def _let_go(
    job: JobRecord, bad: list[BadNode], seen: Observation, past: History, policy: Policy
) -> Exclude | None:
    """Return how a job that finds no nodes takes those that are only suspected.

    A run must not starve while nodes are idle that may be as good as others.
    """
    left = past.left_out(job.job_id)
    weak = [node for node in bad if not node.proof and node.node in left]
    if not weak or not _starved(job) or _waited_s(job, seen) < policy.let_go_s:
        return None
    why = (
        f"job {job.job_id} waited {_waited_s(job, seen):.0f} s for other nodes; it may have"
        f" {describe(weak)} again"
    )
    proven = tuple(node.node for node in bad if node.proof)
    return Exclude(job.job_id, proven, why, let_go=tuple(node.node for node in weak))


def _starved(job: JobRecord) -> bool:
    return any(word in job.reason for word in _STARVED)


def _waited_s(job: JobRecord, seen: Observation) -> float:
    """Return how long a job has waited; Slurm counts from its last requeue."""
    return seen.now - (job.submit or seen.now)


def _excluded(job: JobRecord, seen: Observation, past: History, policy: Policy) -> Action | None:
    """Return how a requeued job leaves out bad nodes: it has to know before its delay is taken."""
    bad = bad_nodes(past.suspicions, policy, now=seen.now)
    if let_go := _let_go(job, bad, seen, past, policy):
        return let_go
    nodes = tuple(node.node for node in bad)
    if not job.restart or not nodes or past.left_out(job.job_id).issuperset(nodes):
        return None
    if past.unexcludable.count(job.job_id) >= EXCLUDE_TRIES:
        return None
    return Exclude(job.job_id, nodes, f"job {job.job_id} leaves out {describe(bad)}")
