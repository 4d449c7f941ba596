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
    """An attempt that makes no progress any more.

    Attributes:
        why: One sentence: for how long, which rank did not arrive, where it and the others stand.
        idle_s: Seconds without progress.
        over_s: Seconds since the limit passed.
        ranks: The ranks that the others wait for; empty where that is not known.
        nodes: The nodes of these ranks.
    """

    why: str
    idle_s: float
    over_s: float
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that the others wait for at each step.

    Attributes:
        share: The part of a step that is lost by it, 0 to 1.
        why: One sentence, with its node, and its GPU's clock where that is known.
    """

    rank: int
    node: str
    share: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the script, as its own files tell it.

    Attributes:
        resumed: The step it started from; None where it never said.
        last_step: The newest step that it is known to have done; None where there is none.
        outcome: How the workers say it ended, "" where they said nothing.
        action, why: What the batch shell did at its end, "" where it did not get there.
        quarantined: Checkpoints it found damaged, as (step, reason).
        hang, straggler: Looked for by `facts.latest` only, and until the batch shell has ended it.
            They mean something only while its job runs: files of a killed attempt stay as they are.
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
    straggler: Straggler | None = None
