"""What fsdpq needs from a scheduler, and the words for its answers. Pure.

Two things implement it: `orchestrator.slurm` and `orchestrator.local`. An answer to a query is
one of three: records, no record of a job, or a QueryError. The last one is never read as the
second: unknown is not dead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class JobState(StrEnum):
    """The state of a job, in Slurm's words (squeue(1), JOB STATE CODES), 22.05 to 26.05."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    CONFIGURING = "CONFIGURING"
    COMPLETING = "COMPLETING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUED = "REQUEUED"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"

    @property
    def ended(self) -> bool:
        """Whether the job is over for the scheduler. A word we do not know is not an end."""
        return self in _ENDED


_ENDED = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, as the scheduler tells it.

    Attributes:
        job_id: Text; never a number (array and heterogeneous ids are none).
        restart: How often the scheduler started this id again; None where it cannot say.
        reason: Why it is pending, or how it ended; "" where there is none.
        in_queue: The scheduler's live record; False for one that only accounting has.
        start, end: Seconds since 1970; None where unknown. `start` of a pending job is planned.
        signal: The signal that ended the batch shell, or 0.
    """

    job_id: str
    name: str
    state: JobState
    restart: int | None = None
    reason: str = ""
    nodes: str = ""
    partition: str = ""
    in_queue: bool = True
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: int = 0

    @property
    def live(self) -> bool:
        """Whether it waits or runs, or will again: the queue has it, and does not call it ended."""
        return self.in_queue and not self.state.ended


@dataclass(frozen=True, slots=True)
class Answer:
    """What the scheduler knows.

    Attributes:
        records: Live ones first, then the newest first.
        silent: Why there is no word on jobs that left the queue (accounting is down); "" when
            their absence from ``records`` means that there is no record.
    """

    records: tuple[JobRecord, ...]
    silent: str = ""


Ids = Callable[[Sequence[JobRecord]], set[str]]


def no_ids(_found: Sequence[JobRecord]) -> set[str]:
    """Ask accounting for nothing."""
    return set()


class Scheduler(Protocol):
    """The effects that fsdpq has on a scheduler. Every one can raise a SchedulerError."""

    def jobs(self, names: Sequence[str], *, ids: Ids = no_ids) -> Answer:
        """Return the records of all jobs called one of ``names``.

        ``ids`` tells, from the jobs in the queue, which others are to be looked up in accounting.

        Raises:
            QueryError: No answer; nothing may be concluded.
        """

    def requeue(self, job_id: str) -> None:
        """Start the same id again. That it already waits to be started counts as done."""

    def start_now(self, job_id: str) -> None:
        """Take back the delay that a requeue puts on a pending job."""

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Have a pending job leave out ``nodes`` and no others."""

    def node_count(self, partition: str | None) -> int | None:
        """Return how many nodes a partition has that can run jobs; None where it has no number.

        Raises:
            QueryError: No answer.
        """

    def cancel(self, job_id: str) -> None:
        """End the job. One that is gone counts as done."""

    def notify(self, job_id: str, *, signal: str) -> None:
        """Send the notice signal to what the job runs on its nodes."""
