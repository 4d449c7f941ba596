"""A run's status as data and as text. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.attempt import Attempt
from orchestrator.classify import of_attempt
from orchestrator.decide import Action, CancelJobs, Exclude, Over, Replace, Restart, StartNow, Wait
from orchestrator.environment import Change
from orchestrator.ledger import Books, Entry, Ledger, Row, account
from orchestrator.sight import Sight

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

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON's types."""
        quarantined = [{"step": step, "reason": reason} for step, reason in self.quarantined]
        plain = {name: getattr(self, name) for name in self.__slots__}
        changes = [change.to_json() for change in self.environment_changes]
        lists = {"quarantined": quarantined, "environment_changes": changes}
        return {**plain, **lists, "attempts": list(self.attempts)}


def status(
    sight: Sight,
    action: Action,
    *,
    attempts: Sequence[Attempt],
    metrics: dict[str, Any],
    causes: Mapping[int, str],
    submitted_at: float | None,
    books: Books | None = None,
    environment_changes: tuple[Change, ...] = (),
) -> Status:
    """Return the status of a run.

    Args:
        sight: What is seen of it.
        action: What is to be done about it.
        attempts: Its attempts, oldest first.
        metrics: The newest line of its metrics; empty where there is none.
        causes: Why attempts ended, by number, as it was found when they were restarted.
        submitted_at: When it was first submitted, in seconds since 1970.
        books: What it wrote down, for the ledger; None leaves the ledger out.
        environment_changes: What differed between attempts in what they ran with.
    """
    newest = attempts[-1] if attempts else None
    jobs = sight.seen.jobs or ()
    job_ids = [job.job_id for job in jobs[:1]] or list(sight.past.submitted[-1:])
    rows = [
        _row(index, attempts, sight, action, causes=causes, submitted_at=submitted_at)
        for index in range(len(attempts))
    ]
    ledger = _ledger(rows, attempts, sight, action, books, submitted_at) if books else None
    entries = ledger.entries if ledger else [None] * len(rows)
    error = newest.error if newest else None
    told = sight.seen.attempt
    live = told if told is not None and _alive(told, sight) else None
    ended = [row["cause"] for row in rows if row["cause"]]
    return Status(
        run=sight.layout.name,
        state=_state(sight, action, newest),
        job_id=job_ids[0] if job_ids else None,
        attempt=newest.number if newest else None,
        step=max((a.last_step for a in attempts[-1:] if a.last_step is not None), default=None),
        steps_total=sight.plan.steps_total,
        checkpoint_step=sight.seen.checkpoint_step,
        cause=action.cause.value if isinstance(action, Over | Restart) else _last(ended),
        next=_next(action),
        loss=metrics.get("loss"),
        tokens_per_s=metrics.get("tokens_per_s"),
        quarantined=tuple(item for attempt in attempts for item in attempt.quarantined),
        error=None
        if error is None
        else {
            "rank": error.rank,
            "node": error.node,
            "step": error.step,
            "exception": error.exception,
        },
        attempts=tuple({**r, **_seconds(e)} for r, e in zip(rows, entries, strict=True)),
        goodput=ledger.to_json() if ledger else None,
        interval=_interval(books.saves) if books else None,
        hang=live.hang.why if live and live.hang else None,
        straggler=live.straggler.why if live and live.straggler else None,
    )


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
            queued_s=row["queued_s"],
            cause=row["cause"],
            alive=row["state"] == "running",
        )
        for row, attempt in zip(rows, attempts, strict=True)
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


_SECONDS = ("startup_s", "useful_s", "lost_s", "saving_s", "stopping_s", "other_s")


def _seconds(entry: Entry | None) -> dict[str, float | None]:
    """Return what the ledger adds to a row, in seconds."""
    values = {name: getattr(entry, name, None) for name in _SECONDS}
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


def _last(items: Sequence[str]) -> str | None:
    return items[-1] if items else None


def state(action: Action) -> str:
    """Return the state of a run that ``action`` is to be done about."""
    match action:
        case Over() | Wait():
            return action.state
        case StartNow() | Exclude():
            return "requeued"
        case Restart():
            return "waiting"
        case CancelJobs():
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


def _row(
    index: int,
    attempts: Sequence[Attempt],
    sight: Sight,
    action: Action,
    *,
    causes: Mapping[int, str],
    submitted_at: float | None,
) -> dict[str, Any]:
    attempt = attempts[index]
    alive = index == len(attempts) - 1 and _alive(attempt, sight)
    later = attempts[index + 1] if index + 1 < len(attempts) else None
    state, cause = ("running", None) if alive else _end(attempt, later)
    if not alive and index == len(attempts) - 1 and isinstance(action, Over | Restart):
        cause = action.cause.value
    cause = causes.get(attempt.number, cause)
    resumed = attempt.resumed
    return {
        "attempt": attempt.number,
        "job_id": attempt.job_id,
        "restart": attempt.restart,
        "state": state,
        "cause": cause,
        "nodes": attempt.nodes,
        "first_step": resumed + 1 if resumed is not None else None,
        "last_step": attempt.last_step,
        "steps_lost": None if alive else _lost(index, attempts, sight.seen.checkpoint_step),
        "queued_s": _queued(index, attempts, submitted_at),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
    }


def _alive(attempt: Attempt, sight: Sight) -> bool:
    if attempt.action or sight.seen.finished:
        return False
    jobs = sight.seen.jobs or ()
    return any(
        job.in_queue
        and not job.state.ended
        and job.job_id == attempt.job_id
        and job.restart in (None, attempt.restart)
        for job in jobs
    )


def _end(attempt: Attempt, later: Attempt | None) -> tuple[str, str]:
    """Return how an attempt ended, from its own files; ``later`` is the next attempt."""
    if attempt.outcome == "finished" or attempt.action == "finished":
        return "finished", "finished"
    if attempt.outcome == "stopped":
        return "stopped", "notice, saved"
    found = of_attempt(attempt)
    if attempt.error is not None or attempt.outcome:
        return "failed", found.cause.value if found else attempt.outcome
    if found is not None:
        return "ended", found.cause.value
    if not attempt.action and later is not None and _same_job(attempt, later):
        # Its batch shell never came to its end, and Slurm started the same job again: a lost node,
        # or a preemption without grace.
        return "ended", "put back by Slurm"
    if attempt.noticed:
        return "ended", "notice, not saved"
    return "ended", "ended without notice"


def _same_job(attempt: Attempt, later: Attempt) -> bool:
    return bool(attempt.job_id) and attempt.job_id == later.job_id


def _lost(index: int, attempts: Sequence[Attempt], checkpoint_step: int | None) -> int | None:
    """Return how many steps of an attempt were done again, or will have to be."""
    done = attempts[index].last_step
    if done is None or attempts[index].outcome == "finished":
        return 0
    later = (attempt.resumed for attempt in attempts[index + 1 :])
    kept = next((step for step in later if step is not None), checkpoint_step or 0)
    return max(0, done - kept)


def _queued(index: int, attempts: Sequence[Attempt], submitted_at: float | None) -> float | None:
    """Return the seconds from the end of the attempt before, or the submission, to the start."""
    start = attempts[index].started_at
    before = attempts[index - 1] if index else None
    since = (before.ended_at or before.heard_at) if before else submitted_at
    return None if start is None or since is None else round(max(0.0, start - since), 1)


def overview(statuses: Sequence[Status]) -> str:
    """Return a line a run."""
    rows = [("RUN", "STATE", "JOB", "ATTEMPT", "STEP", "SAVED", "LOSS", "NEXT")]
    for item in statuses:
        total = f"/{item.steps_total}" if item.steps_total else ""
        rows.append(
            (
                item.run,
                item.state,
                item.job_id or "-",
                _text(item.attempt),
                _text(item.step) + total,
                _text(item.checkpoint_step),
                _text(item.loss, ".4f"),
                item.next,
            )
        )
    return columns(rows)


def details(item: Status) -> str:
    """Return all there is to say about one run."""
    rows = [("ATTEMPT", "JOB", "RESTART", "STATE", "STEPS", "LOST", "QUEUED", "NODES", "CAUSE")]
    for row in item.attempts:
        rows.append(
            (
                str(row["attempt"]),
                row["job_id"],
                str(row["restart"]),
                row["state"],
                f"{_text(row['first_step'])}..{_text(row['last_step'])}",
                _text(row["steps_lost"]),
                _text(row["queued_s"], ".0f") + (" s" if row["queued_s"] is not None else ""),
                row["nodes"],
                row["cause"] or "",
            )
        )
    lines = [overview([item]), "", columns(rows), *_ledger_lines(item)]
    for step, reason in item.quarantined:
        lines.append(f"quarantined: checkpoint of step {step}: {reason}")
    lines += [str(change) for change in item.environment_changes]
    if item.hang is not None:
        lines.append(f"hangs: {item.hang}")
    if item.straggler is not None:
        lines.append(f"slow: {item.straggler}")
    if item.error is not None:
        lines.append(
            f"rank {item.error['rank']} on {item.error['node']}: {item.error['exception']}"
        )
    return "\n".join(lines)


def _ledger_lines(item: Status) -> list[str]:
    """Return where the time went: a table of the attempts, a line for the run, one a cause."""
    run = item.goodput
    if run is None or run["goodput"] is None:
        return []
    table: list[tuple[str, ...]] = [
        ("ATTEMPT", "QUEUED", "START-UP", "USEFUL", "LOST", "SAVING", "STOPPING", "OTHER")
    ]
    for row in item.attempts:
        spent = [row["queued_s"], *(row[name] for name in _SECONDS)]
        table.append((str(row["attempt"]), *map(_duration, spent)))
    lines = ["", columns(table), ""]
    lines.append(
        f"goodput {run['goodput']:.1%}: {_duration(run['useful_s'])} of steps that count in"
        f" {_duration(run['wall_s'])} since the submission"
        + ("" if run["gpu_goodput"] is None else f"; {run['gpu_goodput']:.1%} of allocated time")
    )
    for cause, cost in run["lost_by_cause"].items():
        lines.append(
            f"{cause}, {cost['ends']}x: {_duration(cost['lost_s'])} done again,"
            f" {_duration(cost['stopping_s'])} stopping, {_duration(cost['queued_s'])} queued,"
            f" {_duration(cost['startup_s'])} start-up"
        )
    return lines + ([f"checkpoint interval: {item.interval['why']}"] if item.interval else [])


def _duration(seconds: float | None) -> str:
    """Return seconds for people.

    >>> _duration(7.25), _duration(83), _duration(3 * 3600 + 125), _duration(None)
    ('7.2 s', '83 s', '3:02:05', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` as left-aligned columns, without trailing spaces."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _text(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def progress(item: Status) -> str:
    """Return one line for a log: where, how far."""
    total = f"/{item.steps_total}" if item.steps_total else ""
    loss = f"  loss {item.loss:.4f}" if item.loss is not None else ""
    where = f"attempt {item.attempt}" if item.attempt else "no attempt yet"
    return f"{item.run}  {item.state}  {where}  step {_text(item.step)}{total}{loss}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """What a rehearsed preemption cost.

    Attributes:
        stopped_at: The last step before the stop.
        resumed_at: The step of the checkpoint that the next attempt started from.
        stop_s: Seconds from the notice until the attempt's workers had ended.
        down_s: Seconds from the notice until the first new step.
    """

    run: str
    attempt: int
    stopped_at: int
    resumed_at: int
    steps_lost: int
    stop_s: float | None
    down_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        return asdict(self)


def drill(found: DrillReport) -> str:
    """Return what a rehearsed preemption cost, in three lines."""
    stop = "an unknown time" if found.stop_s is None else f"{found.stop_s:.0f} s"
    return "\n".join(
        (
            f"{found.run}: attempt {found.attempt} stopped after step {found.stopped_at}, {stop}"
            " after the notice",
            f"attempt {found.attempt + 1} resumed from step {found.resumed_at}:"
            f" {found.steps_lost} steps lost",
            f"first new step {found.down_s:.0f} s after the notice",
        )
    )
