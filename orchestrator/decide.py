"""What to do about a run: one pure function over what is seen, what was done and the policy.

One owner for each cause. The batch shell puts its job back after a notice, Slurm does it for a
lost node and for preemption with requeue, the watcher does the rest. A restart is decided only
here, and only when no job of the run is alive.
"""

from dataclasses import dataclass

from orchestrator.attempt import Attempt
from orchestrator.classify import Cause, classify
from orchestrator.scheduler import JobRecord, JobState

# Reasons of squeue for a job that waits for a human, and never starts by itself.
_HELD = (
    "JobHeldUser",
    "JobHeldAdmin",
    "launch failed requeued held",
    "launch_failed_requeued_held",
    "job requeued in held state",
    "JobHoldMaxRequeue",
    "BadConstraints",
    "DependencyNeverSatisfied",
)
# Reasons of squeue that say how a job ended; measured on 22.05, a requeued job shows them on.
_REASONS_OF_ENDS = frozenset(
    {"NonZeroExitCode", "RaisedSignal", "TimeLimit", "NodeDown", "JobLaunchFailure", "OutOfMemory"}
)
# How long Slurm's word on the end of a job must have stood before it is acted on: a requeue by
# Slurm itself passes through an ended state.
SETTLE_S = 4.0
# Slurm's MessageTimeout is 10 s by default and 100 s at most: a submission without an answer has
# failed only if a later query does not find it.
SUBMIT_SETTLE_S = 240.0
# After `fsdpq cancel` the workers have this long to save before the job is ended for them.
CANCEL_SETTLE_S = 600.0
START_NOW_TRIES = 5
# A refusal may pass (a limit on submitted jobs), so it is tried again, but not for ever.
REFUSED_DELAY_S = 300.0
REFUSED_TRIES = 5
# Words for restarts in a run's events, besides the causes.
BY_HAND = "by hand"
REFUSED = "refused"


# Ends that say something about the program: these are not repeated for ever.
_COUNTED = frozenset({Cause.WORKER_ERROR, Cause.TIME_LIMIT, Cause.GONE})


# Ends that a restart would only repeat.
_FINAL = frozenset({Cause.OUT_OF_MEMORY, Cause.CHECKPOINT, Cause.CONFIGURATION, Cause.NO_PROGRESS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen of a run now.

    Attributes:
        jobs: Records of the run's jobs, live ones first; None where the scheduler did not answer.
        silent: Why nothing is known of jobs that left the queue; "" where absence is certain.
        attempt: The newest attempt.
        checkpoint_step: The newest complete checkpoint.
        now: Seconds since 1970.
        trouble: Why the run directory does not read; then nothing else is known.
    """

    now: float
    finished: bool = False
    cancelled_at: float | None = None
    jobs: tuple[JobRecord, ...] | None = None
    silent: str = ""
    attempt: Attempt | None = None
    checkpoint_step: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What fsdpq did for the run, from its events.

    Attributes:
        submitted: Ids of the jobs that were submitted, oldest first.
        asked_at: When the last submission without an answer was sent; None where all have one.
        restarts: (cause, newest checkpoint at that time) of every restart by a watcher.
        gave_up: How the run was given up; None where it was not, or was taken up again by hand.
        refused: (when, why) of each submission that was refused since the last one that was not.
        hurried: (job id, restart count) of each time that a requeue's delay was taken back.
    """

    submitted: tuple[str, ...] = ()
    asked_at: float | None = None
    restarts: tuple[tuple[str, int | None], ...] = ()
    gave_up: "Over | None" = None
    hurried: tuple[tuple[str, int | None], ...] = ()
    refused: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often and how soon a run is brought back."""

    max_no_progress: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now.

    Attributes:
        soon: It changes by itself within seconds, so that a single pass had better stay.
    """

    state: str
    why: str
    soon: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """The run is over: finished, cancelled or failed. `record` says whether to write that down."""

    state: str
    why: str
    cause: Cause
    record: bool = False


@dataclass(frozen=True, slots=True)
class StartNow:
    """Take back the delay of a requeue."""

    job_id: str
    restart: int | None
    why: str


@dataclass(frozen=True, slots=True)
class CancelJobs:
    """End jobs that are alive although the run is cancelled."""

    job_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the run again.

    Attributes:
        key: Names the end that this answers; only one watcher ever acts on it.
        job_id: The id to requeue; None where only a new job will do.
    """

    key: str
    job_id: str | None
    cause: Cause
    why: str


Action = Wait | Over | StartNow | CancelJobs | Restart


def decide(seen: Observation, past: History, policy: Policy) -> Action:
    """Return what to do about a run."""
    if seen.trouble:
        return Wait("unknown", f"the run directory cannot be read: {seen.trouble}")
    live = [job for job in seen.jobs or () if job.in_queue and not job.state.ended]
    if seen.finished:
        return Over("finished", "the last step is done", Cause.FINISHED)
    if seen.cancelled_at is not None:
        return _cancelled(seen, live)
    if seen.jobs is None:
        return _unreachable("the scheduler does not answer")
    if live:
        return _alive(live[0], past)
    return past.gave_up or _ended(seen, past, policy)


def _unreachable(why: str) -> Wait:
    return Wait("unreachable", f"{why}; nothing is done until it does")


def _cancelled(seen: Observation, live: list[JobRecord]) -> Action:
    if seen.jobs is None:
        return _unreachable("cancelled, but the scheduler does not answer")
    asked_s = seen.now - (seen.cancelled_at or seen.now)
    waiting = [job.job_id for job in live if job.state is JobState.PENDING]
    late = [job.job_id for job in live] if asked_s > CANCEL_SETTLE_S else waiting
    if late:
        return CancelJobs(tuple(late), "the run is cancelled, and this job is not")
    if live:
        return Wait("stopping", "cancelled; the job was told to save and end")
    return Over("cancelled", "cancelled by its user; nothing restarts it", Cause.CANCELLED)


def _alive(job: JobRecord, past: History) -> Action:
    if job.state is JobState.UNKNOWN:
        return Wait("unknown", f"Slurm calls job {job.job_id} by a word that fsdpq does not know")
    if job.state is JobState.PENDING:
        return _pending(job, past)
    if job.state in (JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD):
        return Wait("held", f"job {job.job_id} is held ({job.state}); {_RELEASE} {job.job_id}")
    if job.state is JobState.COMPLETING:
        return Wait("stopping", f"job {job.job_id} is completing", soon=True)
    if job.state is JobState.CONFIGURING:
        return Wait("starting", f"job {job.job_id} waits for its nodes to boot")
    return Wait("running", f"job {job.job_id} is {job.state.lower()} on {job.nodes or '?'}")


_RELEASE = "look at its nodes, then `scontrol release`"


def _pending(job: JobRecord, past: History) -> Action:
    if any(word in job.reason for word in _HELD):
        return Wait("held", f"job {job.job_id} is held ({job.reason}); {_RELEASE} {job.job_id}")
    # An update can be lost (2 of 14 were, with Slurm's default scheduler), so it is repeated.
    if (
        job.reason == "BeginTime"
        and past.hurried.count((job.job_id, job.restart)) < START_NOW_TRIES
    ):
        why = f"job {job.job_id} was requeued and waits for its begin time"
        return StartNow(job.job_id, job.restart, why)
    why = f"job {job.job_id} is pending: {job.reason or 'not yet looked at'}"
    # Slurm gives a job that it has just put back no reason until its scheduler comes by, or leaves
    # it that of its last end.
    soon = not job.reason or job.reason in _REASONS_OF_ENDS
    return Wait("requeued", why, soon=soon) if job.restart else Wait("pending", why)


def _ended(seen: Observation, past: History, policy: Policy) -> Action:
    """Decide for a run without a live job."""
    job = seen.jobs[0] if seen.jobs else None
    if past.asked_at is not None and not _answered(past, seen.attempt, job):
        if unanswered_s(seen, past) > 0:
            return Wait("waiting", "a submission got no answer; its job may still turn up")
        return Restart(
            end_key(seen, past), None, Cause.GONE, "the submission got no answer and no job"
        )
    if job is None and seen.silent:
        return _unreachable(f"accounting does not answer ({seen.silent})")
    if job is not None and not job.state.ended:
        # The queue has lost it, or has a word for it that we do not know.
        why = f"accounting calls job {job.job_id} {job.state}, and the queue does not know it"
        return Wait("unknown", f"{why}; if it is gone: `fsdpq requeue`")
    if job is not None and job.end is not None and seen.now - job.end < SETTLE_S:
        why = f"job {job.job_id} has just ended; Slurm may put it back"
        return Wait("stopping", why, soon=True)
    return _restart(seen, past, policy, job)


def unanswered_s(seen: Observation, past: History) -> float:
    """Return for how long the job of a submission without an answer may still turn up."""
    job = seen.jobs[0] if seen.jobs else None
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
    attempt = _attempt_of(job, seen.attempt)
    verdict = classify(job, attempt)
    cause, why = verdict.cause, verdict.why
    if cause is Cause.CANCELLED:
        return Over("cancelled", why, cause, record=True)
    if cause in _FINAL:
        return Over("failed", why, cause, record=True)
    idle = _without_progress(past, seen.checkpoint_step) if cause in _COUNTED else 0
    if idle >= policy.max_no_progress:
        return Over("failed", _give_up(idle, why), cause, record=True)
    if len(past.refused) >= REFUSED_TRIES:
        said = past.refused[-1][1]
        return Over("failed", f"{why}, and the scheduler refused each restart: {said}", cause, True)
    ended_at = (job.end if job else None) or (attempt.ended_at if attempt else None)
    refused_at = past.refused[-1][0] if past.refused else None
    left_s = max(
        _left(ended_at, seen.now, policy.delay_s, idle),
        _left(refused_at, seen.now, REFUSED_DELAY_S, len(past.refused)),
    )
    if left_s > 0:
        return Wait("waiting", f"{why}; the next restart is in {left_s:.0f} s")
    again = job.job_id if job is not None and job.in_queue else None
    return Restart(end_key(seen, past), again, cause, why)


def _left(since: float | None, now: float, delay_s: float, times: int) -> float:
    """Return the seconds that are left of a delay which doubles each time; none the first time."""
    if since is None or times == 0:
        return 0.0
    return delay_s * 2.0 ** (times - 1) - (now - since)


def _attempt_of(job: JobRecord | None, attempt: Attempt | None) -> Attempt | None:
    """Return the attempt if it is one of the job that ended; a job may never have started."""
    if job is None or attempt is None:
        return attempt
    same_start = job.restart is None or job.restart == attempt.restart
    return attempt if attempt.job_id == job.job_id and same_start else None


def _without_progress(past: History, checkpoint_step: int | None) -> int:
    """Return how many restarts there were since the newest checkpoint, or since one by hand.

    Restarts after preemptions and lost nodes are passed over: they say nothing about the program.
    """
    count = 0
    for cause, step in reversed(past.restarts):
        if step != checkpoint_step or cause == BY_HAND:
            break
        count += cause in _COUNTED
    return count


def _give_up(idle: int, why: str) -> str:
    return (
        f"{why}. Restarted {idle} times without a newer checkpoint, so it is not tried again."
        " Mend the cause, then `fsdpq requeue`"
    )
