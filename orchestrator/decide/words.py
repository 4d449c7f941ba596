"""What a decision is made from, and what it can be. Pure data."""

from dataclasses import dataclass

from orchestrator.judging.classify import Cause, Verdict
from orchestrator.judging.nodes import Suspicion
from orchestrator.rundir.attempt import Attempt
from orchestrator.scheduler import JobRecord

# Words for restarts in a run's events, besides the causes.
BY_HAND = "by hand"
REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen of a run now.

    Attributes:
        jobs: Records of the run's jobs, live ones first; None where the scheduler did not answer.
        silent: Why nothing is known of jobs that left the queue; "" where absence is certain.
        stalled: Whether a rank was seen to stand still.
        attempt: The newest attempt; None also where nothing is to be done about the run.
        checkpoint_step: The newest complete checkpoint; None likewise.
        now: Seconds since 1970.
        trouble: Why the run directory does not read; then nothing else is known.
    """

    now: float
    finished: bool = False
    cancelled_at: float | None = None
    jobs: tuple[JobRecord, ...] | None = None
    silent: str = ""
    stalled: bool = False
    attempt: Attempt | None = None
    checkpoint_step: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A restart by a watcher: why, the newest checkpoint then, and the error's signature."""

    cause: str
    checkpoint_step: int | None
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A job that a watcher ended, which Slurm calls cancelled although nobody gave the run up.

    Attributes:
        nodes: How many nodes the job in its place is to have.
        at: When that was written down, just before, in seconds since 1970.
    """

    job_id: str
    cause: Cause
    why: str
    nodes: int | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What fsdpq did for the run, from its events.

    Attributes:
        submitted: Ids of the jobs that were submitted, oldest first.
        asked_at: When the last submission without an answer was sent; None where all have one.
        asked_nodes: The number of nodes that it asked for; None for as many as the plan says.
        sizes: (job id, nodes) of the jobs that got another number of nodes than the plan's.
        restarts: Every restart by a watcher or by hand, oldest first.
        gave_up: How the run was given up; None where it was not, or was taken up again by hand.
        refused: (when, why) of each submission that was refused since the last one that was not.
        hurried: (job id, restart count) of each time that a requeue's delay was taken back.
        stopped: Jobs that a watcher ended to put others in their place, oldest first.
        suspicions: What was said against nodes.
        judged: Numbers of the attempts whose end has been written down.
        excluded: (job id, nodes) of each time that a job was told to leave out these nodes.
        unexcludable: Ids of jobs that refused to, once for each refusal.
        micro_batch: What the micro-batch has been lowered to; None where it is the job file's.
        told_to_stop: (attempt, when) a watcher told it to stop for its network.
        looked: (attempt, when) a watcher looked at its network in vain.
    """

    submitted: tuple[str, ...] = ()
    asked_at: float | None = None
    asked_nodes: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    restarts: tuple[Restarted, ...] = ()
    gave_up: "Over | None" = None
    hurried: tuple[tuple[str, int | None], ...] = ()
    refused: tuple[tuple[float, str], ...] = ()
    stopped: tuple[Stopped, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    judged: frozenset[int] = frozenset()
    excluded: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unexcludable: tuple[str, ...] = ()
    micro_batch: int | None = None
    told_to_stop: tuple[tuple[int, float], ...] = ()
    looked: tuple[tuple[int, float], ...] = ()

    def left_out(self, job_id: str) -> frozenset[str]:
        """Return the nodes that a job was told to leave out, besides those of the job file."""
        told = [nodes for job, nodes in self.excluded if job == job_id]
        return frozenset(told[-1]) if told else frozenset()


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
    """The run is over: finished, cancelled or failed.

    Attributes:
        record: Whether to write that down.
        job_id: A job of the run that still has to be ended; "" where there is none.
    """

    state: str
    why: str
    cause: Cause
    record: bool = False
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Exclude:
    """Have a pending job leave out these nodes, and no others, of those that are suspected.

    Attributes:
        let_go: Nodes that are no longer suspected.
    """

    job_id: str
    nodes: tuple[str, ...]
    why: str
    let_go: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartNow:
    """Take back the delay of a requeue."""

    job_id: str
    restart: int | None
    why: str


@dataclass(frozen=True, slots=True)
class ProveNetwork:
    """Read the logs of an attempt for what network it uses: nobody in its job has."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class TellStop:
    """Tell a job to save and stop, for its network is less than the run requires."""

    job_id: str
    attempt: int
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
        verdict: Why the last attempt ended.
        exclude: Nodes to leave out.
        nodes: How many nodes a new job has; None for as many as the plan says.
        micro_batch: What the micro-batch is to be from now on; None where it stays.
    """

    key: str
    job_id: str | None
    verdict: Verdict
    why: str
    exclude: tuple[str, ...] = ()
    nodes: int | None = None
    micro_batch: int | None = None

    @property
    def cause(self) -> Cause:
        """Why the last attempt ended, in a word."""
        return self.verdict.cause


@dataclass(frozen=True, slots=True)
class Replace:
    """End a job and start another in its place.

    Attributes:
        key: Names the job as it is; only one watcher ever acts on it.
        requeue: Whether putting the same job back will do.
        nodes: How many nodes the new one has; None for as many as the plan says.
        exclude: Nodes to leave out.
        suspects: Nodes that the end of the job speaks against.
        signature: Of the error that ended it, as in a `Verdict`.
    """

    key: str
    job_id: str
    cause: Cause
    why: str
    requeue: bool = False
    nodes: int | None = None
    exclude: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    signature: str = ""


Action = Wait | Over | Exclude | StartNow | ProveNetwork | TellStop | CancelJobs | Restart | Replace
