"""Why an attempt ended: from what the workers wrote and the scheduler's record. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.attempt import Attempt, RankError
from orchestrator.scheduler import JobRecord, JobState


class Cause(StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    NOTICE = "notice, saved"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    NODE_FAILURE = "node failure"
    NODE_CHECK = "node check"
    LAUNCH = "launch failure"
    GPU_FAILURE = "GPU failure"
    FABRIC = "network error"
    HANG = "hang"
    OUT_OF_MEMORY = "out of memory"
    GPU_MEMORY = "out of GPU memory"
    DISK_FULL = "disk full"
    WORKER_ERROR = "worker error"
    CHECKPOINT = "no usable checkpoint"
    CONFIGURATION = "configuration error"
    NO_PROGRESS = "no progress"
    RESIZED = "resized"
    CANCELLED = "cancelled"
    GONE = "gone without a word"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an attempt ended.

    Attributes:
        why: One sentence; names rank and node where they are known.
        advice: What to do about it, a sentence; "" where there is nothing to be done.
        suspects: The nodes that the evidence speaks against; empty where it was the program.
        signature: The same for the same error at the same step; "" where there is none.
    """

    cause: Cause
    why: str
    advice: str = ""
    suspects: tuple[str, ...] = ()
    signature: str = ""


def classify(job: JobRecord | None, attempt: Attempt | None) -> Verdict:
    """Return why a job ended.

    From evidence: what the workers wrote, then the scheduler's record. Never from the clock.
    """
    if job is not None and job.state is JobState.CANCELLED:
        # Accounting has the user, "CANCELLED by 1000"; the queue's reason is an older one's.
        told = job.reason.startswith("CANCELLED by")
        by = job.reason.removeprefix("CANCELLED ") if told else "by scancel"
        return Verdict(Cause.CANCELLED, f"job {job.job_id} was cancelled {by}; nothing restarts it")
    if attempt is not None and attempt.outcome == "no_checkpoint":
        return Verdict(Cause.CHECKPOINT, attempt.reason)
    if job is None and attempt is not None and attempt.action == "none" and attempt.noticed:
        return _forgotten(attempt)
    if attempt is not None and attempt.action == "stop":
        return Verdict(Cause.NO_PROGRESS, f"{attempt.why}; see notice.lead_s and the save time")
    if attempt is not None and attempt.outcome == "stopped":
        return Verdict(Cause.NOTICE, f"attempt {attempt.number} stopped for a notice and saved")
    # Slurm's own word goes before the errors of ranks: those of survivors follow from it.
    told = job is not None and job.state in _RECORDS
    if attempt is not None and attempt.error is not None and not told:
        mistake = attempt.error.exception.startswith(_MISTAKES)
        return Verdict(Cause.CONFIGURATION if mistake else Cause.WORKER_ERROR, _name(attempt.error))
    return _from_record(job, attempt)


def past_verdict(attempt: Attempt) -> Verdict:
    """Return why an attempt ended that others have followed: the scheduler's word is gone."""
    if attempt.outcome == "stopped":
        return Verdict(Cause.NOTICE, f"attempt {attempt.number} stopped for a notice and saved")
    if attempt.error is not None:
        return Verdict(Cause.WORKER_ERROR, _name(attempt.error))
    return Verdict(Cause.GONE, f"attempt {attempt.number} ended without a word")


def _name(error: RankError) -> str:
    return f"rank {error.rank} on {error.node} failed: {error.exception}"


# Errors that no restart mends.
_MISTAKES = ("SpecError:", "SyntaxError:", "IndentationError:")
# How slurmstepd says that it could not set up the job's output (22.05: "0:53").
LAUNCH_SIGNAL = 53

_RECORDS = {
    JobState.PREEMPTED: Cause.PREEMPTED,
    JobState.TIMEOUT: Cause.TIME_LIMIT,
    JobState.DEADLINE: Cause.TIME_LIMIT,
    JobState.NODE_FAIL: Cause.NODE_FAILURE,
    JobState.BOOT_FAIL: Cause.NODE_FAILURE,
    JobState.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
}


def _from_record(job: JobRecord | None, attempt: Attempt | None) -> Verdict:
    if job is None:
        return Verdict(Cause.GONE, "the scheduler has no record of a job of this run")
    cause = _RECORDS.get(job.state, Cause.WORKER_ERROR)
    ended = f"job {job.job_id} ended as {job.state}"
    if cause is not Cause.WORKER_ERROR:
        return Verdict(cause, f"{ended} before it could save")
    code = f", exit code {job.exit_code}" + (f", signal {job.signal}" if job.signal else "")
    if job.signal == LAUNCH_SIGNAL:
        return Verdict(
            cause, f"{ended}{code}: Slurm could not open batch.log; is the run directory there?"
        )
    if attempt is None:
        return Verdict(cause, f"{ended}{code} before the script started; see batch.log")
    return Verdict(cause, f"{ended}{code}, and no rank left an error; see `fsdpq logs`")


def _forgotten(attempt: Attempt) -> Verdict:
    """Return why a job that heard a notice and was not put back is not restarted either.

    scancel, the time limit and a lost node all look like this once the scheduler has forgotten
    the job, and the first of them is final.
    """
    why = f"{attempt.why}, and the scheduler no longer says whether its user cancelled it"
    return Verdict(Cause.NO_PROGRESS, f"{why}. If nobody did: `fsdpq requeue`")
