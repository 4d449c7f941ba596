"""What is known of one start of the script. Pure; `orchestrator.runstore.facts` reads it."""

from dataclasses import dataclass
from enum import IntEnum

from orchestrator.rundir.cause import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """The exception that ended a rank."""

    rank: int | None
    node: str
    step: int | None
    exception: str
    at: float


class Weight(IntEnum):
    """How much of a root cause a finding is; the smaller one is believed.

    SLURM: the scheduler's own word on the end of the job.
    ROOT: it says by itself what broke, whatever else was written.
    OWN: an error of the rank that wrote it, no other rank's.
    MAYBE: a cause, or what follows when another rank is gone or slow (a collective's time-out).
    ECHO: another rank's end, seen from here.
    """

    SLURM = 0
    ROOT = 1
    OWN = 2
    MAYBE = 3
    ECHO = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One piece of evidence from the logs of an attempt.

    Attributes:
        kind: The name of the pattern, "cuda-oom".
        what: What it says, without rank and node.
        advice: What to do about it; "" where there is nothing to be said.
        rank: Global rank; None where it is no rank's, or not known.
        node: As Slurm spells it where that is known, else as the node calls itself.
        step: Completed steps of that rank, where it said so.
        suspect: Whether it speaks against ``node``.
        at: Seconds since 1970; None where the log has no time.
        peer: The other end of a connection, "10.0.0.1<33759>"; "" where it is about none.
        file: Where it stands; "" where that is not known.
        line: The line there that says so, as far as a pattern looked; "" where it is none.
    """

    kind: str
    cause: Cause
    weight: Weight
    what: str
    advice: str = ""
    rank: int | None = None
    node: str = ""
    step: int | None = None
    suspect: bool = False
    at: float | None = None
    peer: str = ""
    file: str = ""
    line: str = ""


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
class Network:
    """What NCCL's logs say of the network of an attempt; see `orchestrator.fabric`.

    Attributes:
        verdict: "ok", "degraded", "no_gdr", "socket_fallback" or "unknown".
        name: As NCCL's log gives it, "IB"; "" where it does not.
        hcas: On the host with the fewest; None where nothing is said of them.
        gdr: Whether GPUDirect is used; None if unproven.
        why: What is wrong, a sentence; "" where nothing is.
        hosts: Those that it is the fault of, as they call themselves; empty where it is no one's.
        stop: Whether the job asks for more, and the attempt is to be stopped for it.
        at: When that was found, in seconds since 1970.
    """

    verdict: str
    name: str = ""
    hcas: int | None = None
    gdr: bool | None = None
    why: str = ""
    advice: str = ""
    hosts: tuple[str, ...] = ()
    stop: bool = False
    at: float = 0.0

    @property
    def flagged(self) -> bool:
        """Whether it works and is not what it should be."""
        return self.verdict in ("degraded", "no_gdr", "socket_fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the script, as its own files tell it.

    Attributes:
        nodes: A node list of Slurm, in the order of the node ranks: "n[1,3,2,4]".
        switches: The leaf switches or blocks that they are on, where Slurm knows of any.
        resumed: The step it started from; None where it never said.
        last_step: The newest step that it is known to have done; None where there is none.
        outcome: How the workers say it ended, "" where they said nothing.
        action, why: What the batch shell did at its end, "" where it did not get there.
        quarantined: Checkpoints it found damaged, as (step, reason).
        reclaimed: Nodes that the cloud said it would take back.
        findings: What its logs say, the root cause first; read only where `facts.ended` was asked.
        hang, straggler: Looked for by `facts.latest` only, and until the batch shell has ended it.
            They mean something only while its job runs: files of a killed attempt stay as they are.
        network: What was found of its network; None where nobody has looked yet.
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
    findings: tuple[Finding, ...] = ()
    straggler: Straggler | None = None
    switches: tuple[str, ...] = ()
    reclaimed: tuple[str, ...] = ()
    network: Network | None = None
