"""What is known of one start of the script. Pure; `orchestrator.facts` reads it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """The exception that ended a rank."""

    rank: int | None
    node: str
    step: int | None
    exception: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """An attempt none of whose ranks gets on.

    Attributes:
        why: One sentence: for how long, and which rank did not arrive.
        idle_s: Seconds since a rank last got on.
        limit_s: How long that may take.
    """

    why: str
    idle_s: float
    limit_s: float

    @property
    def overdue_s(self) -> float:
        """Seconds beyond the limit."""
        return self.idle_s - self.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the script, as its own files tell it.

    Attributes:
        resumed: The step it started from; None where it never said.
        last_step: The newest step that it is known to have done; None where there is none.
        outcome: How the workers say it ended, "" where they said nothing.
        action, why: What the batch shell did at its end, "" where it did not get there.
        quarantined: Checkpoints it found damaged, as (step, reason).
    """

    number: int
    job_id: str
    restart: int
    nodes: str
    started_at: float | None
    ended_at: float | None
    resumed: int | None
    last_step: int | None
    saved_step: int | None
    outcome: str
    reason: str
    action: str
    why: str
    noticed: bool
    heard_at: float | None
    quarantined: tuple[tuple[int, str], ...]
    error: RankError | None
    hang: Hang | None = None
