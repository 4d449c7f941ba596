"""What to do about a run without a live job. Pure."""

import dataclasses

from orchestrator.decide import budget
from orchestrator.decide.live import attempt_of
from orchestrator.decide.words import Action, History, Observation, Over, Restart, Stopped, Wait
from orchestrator.judging.classify import Cause, Verdict, classify
from orchestrator.judging.nodes import bad_nodes, describe, left_out, suspicions
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.attempt import Attempt
from orchestrator.scheduler import JobRecord, JobState

# How long Slurm's word on the end of a job must have stood before it is acted on: a requeue by
# Slurm itself passes through an ended state.
SETTLE_S = 4.0
# Slurm's MessageTimeout is 10 s by default and 100 s at most: a submission without an answer has
# failed only if a later query does not find it.
SUBMIT_SETTLE_S = 240.0
# How long after `scancel` Slurm may call a job ended that a watcher has ended.
STOPPED_S = 180.0
# A refusal may pass (a limit on submitted jobs), so it is tried again, but not for ever.
REFUSED_DELAY_S = 300.0
REFUSED_TRIES = 5


def decide_ended(seen: Observation, past: History, policy: Policy) -> Action:
    """Return what to do about a run none of whose jobs is alive."""
    job = _newest(seen, past)
    if past.asked_at is not None and not _answered(past, seen.attempt, job):
        if unanswered_s(seen, past) > 0:
            return Wait("waiting", "a submission got no answer; its job may still turn up")
        lost = Verdict(Cause.GONE, "the submission got no answer and no job")
        return Restart(end_key(seen, past), None, lost, lost.why, nodes=past.asked_nodes)
    if stopped := _ours(job, past):
        return _replacement(stopped, seen, past, policy)
    if job is None and seen.silent:
        why = f"accounting does not answer ({seen.silent}); nothing is done until it does"
        return Wait("unreachable", why)
    if job is not None and not job.state.ended:
        # The queue has lost it, or has a word for it that we do not know.
        why = f"accounting calls job {job.job_id} {job.state}, and the queue does not know it"
        return Wait("unknown", f"{why}; if it is gone: `fsdpq requeue`")
    if job is not None and job.end is not None and seen.now - job.end < SETTLE_S:
        why = f"job {job.job_id} has just ended; Slurm may put it back"
        return Wait("stopping", why, soon=True)
    return _restart(seen, past, policy, job)


def _newest(seen: Observation, past: History) -> JobRecord | None:
    """Return the newest job of the run; None where the scheduler knows of none."""
    return next((job for job in seen.jobs or () if not _never_was(job, past)), None)


def _never_was(job: JobRecord, past: History) -> bool:
    """Return whether this is what Slurm 22.05 keeps of a submission that it refused."""
    refused = job.state is JobState.FAILED and job.reason == "BadConstraints"
    return refused and job.job_id not in past.submitted


def _ours(job: JobRecord | None, past: History) -> Stopped | None:
    """Return the entry of a job that a watcher ended, and for which there is no other one yet."""
    if not past.stopped or (past.submitted and past.submitted[-1] != past.stopped[-1].job_id):
        return None
    newest = past.stopped[-1]
    if job is None:
        return newest
    # Slurm's word on the end has to fit: the job may have gone on, and been cancelled later.
    soon = job.end is None or newest.at - 5 <= job.end <= newest.at + STOPPED_S
    ended = job.state is JobState.CANCELLED or job.end is None
    return newest if job.job_id == newest.job_id and job.state.ended and ended and soon else None


def _replacement(stopped: Stopped, seen: Observation, past: History, policy: Policy) -> Action:
    verdict = Verdict(stopped.cause, stopped.why)
    if over := _refused_too_often(past, verdict):
        return over
    if (left_s := _left(seen, past, policy, None, verdict)) > 0:
        return Wait("waiting", f"{verdict.why}; the next submission is in {left_s:.0f} s")
    bad = left_out(past.suspicions, policy, now=seen.now)
    key = end_key(seen, past)
    return Restart(key, None, verdict, stopped.why, exclude=bad, nodes=stopped.nodes)


def unanswered_s(seen: Observation, past: History) -> float:
    """Return for how long the job of a submission without an answer may still turn up."""
    job = _newest(seen, past)
    if past.asked_at is None or _answered(past, seen.attempt, job):
        return 0.0
    return max(0.0, SUBMIT_SETTLE_S - (seen.now - past.asked_at))


def _answered(past: History, attempt: Attempt | None, job: JobRecord | None) -> bool:
    """Return whether a submission without an answer has shown up: as an attempt or a record."""
    started = attempt.started_at if attempt else None
    shown = started is not None and past.asked_at is not None and started >= past.asked_at - 1
    return shown or (job is not None and job.job_id not in past.submitted)


def end_key(seen: Observation, past: History) -> str:
    """Return the name of the end that a restart would answer, the same for whoever restarts.

    A requeue changes the restart count, a new job the number of submissions.
    """
    done = len(past.submitted)
    if not seen.jobs:
        return f"none.{done}"
    return f"{seen.jobs[0].job_id}.{seen.jobs[0].restart or 0}.{done}"


def turn(past: History) -> str:
    """Return what has to be claimed before the end of a job is answered.

    Nothing that is under way may change it: as long as a restart is, the claim of whoever does it
    keeps others away. So it holds no word of Slurm's either, which says less of a job once the
    controller has forgotten it.
    """
    return f"submitted-{len(past.submitted)}"


def _restart(seen: Observation, past: History, policy: Policy, job: JobRecord | None) -> Action:
    attempt = attempt_of(job, seen.attempt)
    verdict = classify(job, attempt)
    cause, why = verdict.cause, verdict.why
    if cause is Cause.CANCELLED:
        return Over("cancelled", why, cause, record=True)
    if cause is Cause.GPU_MEMORY and (smaller := _smaller_micro_batch(past, policy)):
        return _again(seen, past, policy, job, verdict, micro_batch=smaller)
    if cause in budget.FINAL:
        return Over("failed", _told(verdict), cause, record=True)
    if spent := budget.spent(verdict, past, seen.checkpoint_step, policy):
        return Over("failed", _give_up(verdict, spent), cause, record=True)
    if over := _refused_too_often(past, verdict):
        return over
    if (left_s := _left(seen, past, policy, job, verdict)) > 0:
        return Wait("waiting", f"{why}; the next restart is in {left_s:.0f} s")
    return _again(seen, past, policy, job, verdict)


def _again(
    seen: Observation,
    past: History,
    policy: Policy,
    job: JobRecord | None,
    verdict: Verdict,
    *,
    micro_batch: int | None = None,
) -> Restart:
    """Return the restart. A requeue may start at once, so what it may not use takes a new job."""
    new = suspicions(verdict, at=seen.now, attempt=_number(seen))
    known = [s for s in past.suspicions if seen.attempt is None or s.attempt != _number(seen)]
    bad = bad_nodes([*known, *new], policy, now=seen.now)
    nodes = tuple(node.node for node in bad)
    requeue = job is not None and job.in_queue and _as_wanted(job, past, policy, nodes)
    why = f"{verdict.why}. Without {describe(bad)}" if bad else verdict.why
    return Restart(
        end_key(seen, past),
        job.job_id if job is not None and requeue else None,
        verdict,
        why,
        exclude=nodes,
        micro_batch=micro_batch,
    )


def _refused_too_often(past: History, verdict: Verdict) -> Over | None:
    if len(past.refused) < REFUSED_TRIES:
        return None
    why = f"{verdict.why}, and the scheduler refused each restart: {past.refused[-1][1]}"
    return Over("failed", why, verdict.cause, record=True)


def _as_wanted(job: JobRecord, past: History, policy: Policy, nodes: tuple[str, ...]) -> bool:
    """Return whether a job has the full size and leaves out what it should."""
    shrunk = any(size < max(policy.sizes, default=size) for size in _sizes_of(job, past))
    return not shrunk and past.left_out(job.job_id).issuperset(nodes)


def _sizes_of(job: JobRecord, past: History) -> list[int]:
    return [size for job_id, size in past.sizes if job_id == job.job_id]


def _smaller_micro_batch(past: History, policy: Policy) -> int | None:
    """Return the next smaller micro-batch that still divides the global batch; None without one."""
    if policy.on_gpu_memory != "smaller_micro_batch":
        return None
    now = past.micro_batch or policy.micro_batch
    return next((size for size in range(now // 2, 0, -1) if now % size == 0), None)


def _number(seen: Observation) -> int | None:
    return seen.attempt.number if seen.attempt else None


def _left(
    seen: Observation, past: History, policy: Policy, job: JobRecord | None, verdict: Verdict
) -> float:
    """Return the seconds that are left until the restart."""
    attempt = attempt_of(job, seen.attempt)
    ended_at = (job.end if job else None) or (attempt.ended_at if attempt else None)
    refused_at = past.refused[-1][0] if past.refused else None
    patient = dataclasses.replace(policy, max_delay_s=REFUSED_DELAY_S * 64)
    waits = (
        (ended_at, budget.delay(verdict, past, seen.checkpoint_step, policy)),
        (refused_at, budget.grown(REFUSED_DELAY_S, len(past.refused), patient)),
    )
    return max(0.0 if at is None else delay_s - (seen.now - at) for at, delay_s in waits)


def _told(verdict: Verdict) -> str:
    return f"{verdict.why}. {verdict.advice}" if verdict.advice else verdict.why


def _give_up(verdict: Verdict, spent: str) -> str:
    what = verdict.advice.rstrip(".") or "Mend the cause"
    why = f"{verdict.why}. {spent[0].upper()}{spent[1:]}, so it is not tried again"
    return f"{why}. {what}; then `fsdpq requeue`"
