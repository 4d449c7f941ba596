"""A run's status as data. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.bandwidth import Record, find
from orchestrator.decide import (
    Action,
    CancelJobs,
    Exclude,
    Over,
    ProveNetwork,
    Replace,
    Restart,
    StartNow,
    TellStop,
    Wait,
)
from orchestrator.judging.ledger import Books, Entry, Ledger, Row, account
from orchestrator.judging.nodes import BadNode, bad_nodes
from orchestrator.launchplan.placement import spread
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.report.rows import Told, alive, ended, row
from orchestrator.rundir.attempt import Attempt, Network, RankError
from orchestrator.rundir.environment import Change
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import JobState

# Characters of an explanation in a table; the whole of it is in the events and in --json.
_WIDTH = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `fsdpq status` says of a run. `to_json` has the keys that others rely on."""

    run: str
    state: str
    job_id: str | None
    attempt: int | None
    step: int | None
    steps_total: int | None
    checkpoint_step: int | None
    cause: str | None
    next: str
    loss: float | None
    tokens_per_s: float | None
    quarantined: tuple[tuple[int, str], ...]
    error: dict[str, Any] | None
    attempts: tuple[dict[str, Any], ...]
    goodput: dict[str, Any] | None = None
    interval: dict[str, Any] | None = None
    environment_changes: tuple[Change, ...] = ()
    hang: str | None = None
    straggler: str | None = None
    bad_nodes: tuple[BadNode, ...] = ()
    spread: str | None = None
    bandwidth: Record | None = None
    network: Network | None = None
    validation: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON's types."""
        quarantined = [{"step": step, "reason": reason} for step, reason in self.quarantined]
        plain = {name: getattr(self, name) for name in self.__slots__}
        changes = [change.to_json() for change in self.environment_changes]
        bad = [asdict(node) for node in self.bad_nodes]
        lists = {"quarantined": quarantined, "environment_changes": changes, "bad_nodes": bad}
        measured = {
            "bandwidth": find(self.bandwidth).to_json() if self.bandwidth else None,
            "network": asdict(self.network) if self.network else None,
        }
        return {**plain, **lists, **measured, "attempts": list(self.attempts)}


def status(
    sight: Sight,
    action: Action,
    *,
    attempts: Sequence[Attempt],
    metrics: dict[str, Any],
    told: Mapping[int, Told],
    submitted_at: float | None,
    books: Books | None = None,
    environment_changes: tuple[Change, ...] = (),
    bandwidth: Record | None = None,
    validation: dict[str, float] | None = None,
) -> Status:
    """Return the status of a run.

    Args:
        sight: What is seen of it.
        action: What is to be done about it.
        attempts: Its attempts, oldest first.
        metrics: The newest line of its metrics; empty where there is none.
        told: What watchers wrote down of the ends of attempts, by number.
        submitted_at: When it was first submitted, in seconds since 1970.
        books: What it wrote down, for the ledger; None leaves the ledger out.
        environment_changes: What differed between attempts in what they ran with.
        bandwidth: What was measured last before the workers started.
        validation: Its newest, with `step` and `loss`; None where there is none.
    """
    attempts = ended(attempts, told)
    newest = attempts[-1] if attempts else None
    rows = [
        row(index, attempts, sight, action, told=told, submitted_at=submitted_at)
        for index in range(len(attempts))
    ]
    ledger = _ledger(rows, attempts, sight, action, books, submitted_at) if books else None
    live = _live(sight)
    return Status(
        run=sight.layout.name,
        state=_state(sight, action, newest),
        job_id=_job_id(sight),
        attempt=newest.number if newest else None,
        step=newest.last_step if newest else None,
        steps_total=sight.plan.steps_total,
        checkpoint_step=sight.seen.checkpoint_step,
        cause=_cause(action, rows),
        next=_next(action) + _for_switches(action, sight),
        loss=metrics.get("loss"),
        tokens_per_s=metrics.get("tokens_per_s"),
        quarantined=tuple(item for attempt in attempts for item in attempt.quarantined),
        error=_error(newest.error) if newest and newest.error else None,
        attempts=_with_seconds(rows, ledger),
        goodput=ledger.to_json() if ledger else None,
        interval=_interval(books.saves) if books else None,
        hang=live.hang.why if live and live.hang else None,
        straggler=live.straggler.why if live and live.straggler else None,
        bandwidth=bandwidth,
        network=newest.network if newest else None,
        bad_nodes=tuple(bad_nodes(sight.past.suspicions, sight.policy, now=sight.seen.now)),
        spread=_spread(newest, sight.plan) if newest else None,
        validation=validation,
    )


def _job_id(sight: Sight) -> str | None:
    """Return the run's job: the first that Slurm knows of, else the last that was submitted."""
    known = [job.job_id for job in (sight.seen.jobs or ())[:1]] or sight.past.submitted[-1:]
    return known[0] if known else None


def _live(sight: Sight) -> Attempt | None:
    seen = sight.seen.attempt
    return seen if seen is not None and alive(seen, sight) else None


def _cause(action: Action, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why the run is over or starts again, else why an attempt ended last."""
    if isinstance(action, Over | Restart):
        return action.cause.value
    return next((told["cause"] for told in reversed(rows) if told["cause"]), None)


def _error(error: RankError) -> dict[str, Any]:
    return {
        "rank": error.rank,
        "node": error.node,
        "step": error.step,
        "exception": error.exception,
    }


def _spread(newest: Attempt, plan: LaunchPlan) -> str | None:
    return spread(newest.nodes, newest.switches, per_group=plan.nodes_per_group)


def _ledger(
    rows: Sequence[dict[str, Any]],
    attempts: Sequence[Attempt],
    sight: Sight,
    action: Action,
    books: Books,
    submitted_at: float | None,
) -> Ledger:
    known = [
        Row(
            attempt=attempt,
            queued_s=told["queued_s"],
            cause=told["cause"],
            alive=told["state"] == "running",
        )
        for told, attempt in zip(rows, attempts, strict=True)
    ]
    return account(
        known,
        books,
        checkpoint_step=sight.seen.checkpoint_step,
        world_size=sight.plan.world_size,
        nproc_per_node=sight.plan.nproc_per_node,
        submitted_at=submitted_at,
        now=sight.seen.now,
        over=isinstance(action, Over),
    )


SECONDS = ("startup_s", "useful_s", "lost_s", "saving_s", "stopping_s", "other_s")


def _with_seconds(
    rows: Sequence[dict[str, Any]], ledger: Ledger | None
) -> tuple[dict[str, Any], ...]:
    entries = ledger.entries if ledger else [None] * len(rows)
    return tuple({**told, **_seconds(e)} for told, e in zip(rows, entries, strict=True))


def _seconds(entry: Entry | None) -> dict[str, float | None]:
    """Return what the ledger adds to a row, in seconds."""
    values = {name: getattr(entry, name, None) for name in SECONDS}
    return {name: None if v is None else round(v, 3) for name, v in values.items()}


def _interval(saves: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the interval between saves that `auto` chose last; None where it never did."""
    chosen = next((dict(s) for s in reversed(saves) if s.get("kind") == "interval"), None)
    return chosen if chosen and isinstance(chosen.get("why"), str) else None


def _next(action: Action) -> str:
    """Return what happens next, in one line that is not too long for a table."""
    why = " ".join(action.why.split())
    short = why if len(why) <= _WIDTH else f"{why[:_WIDTH]}..."
    acts = isinstance(action, Restart | Replace)
    return f"{short}; `fsdpq watch` restarts it" if acts else short


def _for_switches(action: Action, sight: Sight) -> str:
    """Return that a job may wait for its switches: Slurm says Resources then, measured on 22.05."""
    asked = dict(sight.plan.directives).get("switches")
    jobs = sight.seen.jobs or ()
    waits = any(job.state is JobState.PENDING and job.reason == "Resources" for job in jobs)
    if asked is None or not waits or not isinstance(action, Wait):
        return ""
    return f" (it asks for --switches={asked}, and may wait for that)"


def state(action: Action) -> str:
    """Return the state of a run that ``action`` is to be done about."""
    match action:
        case Over() | Wait():
            return action.state
        case StartNow() | Exclude():
            return "requeued"
        case Restart():
            return "waiting"
        case ProveNetwork():
            return "running"
        case CancelJobs() | TellStop():
            return "stopping"
        case Replace():
            return "stopping" if action.requeue else "waiting"


def _state(sight: Sight, action: Action, newest: Attempt | None) -> str:
    found = state(action)
    return "starting" if found == "running" and not _trains(sight, newest) else found


def _trains(sight: Sight, newest: Attempt | None) -> bool:
    """Return whether the newest attempt is past its start; a script may never tell its steps."""
    tells = sight.plan.steps_total is not None or (
        newest is not None and newest.resumed is not None
    )
    return newest is not None and (newest.last_step is not None or not tells)
