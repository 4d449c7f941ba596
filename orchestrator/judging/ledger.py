"""Where the time of a run went: useful steps, lost steps, saves, start-ups, waiting. Pure.

An attempt is cut into pieces that do not overlap, so that one can add them up by hand. All are
seconds, none is ever negative (the clocks of two hosts may differ), and start.json and exit.json
tell whole seconds only.

    queued    from the end of the attempt before (or the submission) to the start of the script;
              the time that Slurm takes to notice a dead node is in here
    start-up  from the start of the script to the beginning of its first step
              (`at` - `step_s` of its first line in metrics.jsonl)
    useful    `step_s` of the steps that count: no later attempt did them again
    lost      `step_s` of the steps that a later attempt did again, or will have to: those after
              the step it resumed from; where there is no later attempt, after the newest complete
              checkpoint. While an attempt lives, none of its steps is lost
    saving    `blocked_s` of its saves in saves.jsonl; where there are none for the whole run, the
              `blocked_s` of its lines, which counts votes too
    stopping  from the end of its last step to its end, less the saves in between; a step that was
              cut off is in here. Zero for an attempt whose end nobody wrote down
    other     the rest: votes, reading data, logging, and the step under way of a living attempt

start-up + useful + lost + saving + stopping + other = from the start of the script to its end (a
living attempt: to now). An attempt that died before its first step is all start-up. Without a line
in the metrics nothing but `queued` is known, and the rest is None.

Lines without `step_s` leave the pieces of their attempt unknown, and with them the goodput.

For the run, over all attempts: `wall_s` is from the submission to the end of a run that is over,
else to now; goodput = useful / wall_s. Allocated seconds count nodes (`node_s`) and ranks, one a
GPU (`gpu_s`), each attempt with its own number. What an end cost goes to its cause: the steps that
had to be done again because of it, its stopping, and the queue and start-up of the attempt after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.judging.ledger_lines import (
    Saves,
    Step,
    Steps,
    saves_by_attempt,
    steps_by_attempt,
)
from orchestrator.rundir.attempt import Attempt

_PARTS = ("startup_s", "useful_s", "lost_s", "saving_s", "stopping_s", "other_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An attempt as the status shows it: what the ledger adds to.

    Attributes:
        queued_s: Seconds in the queue before it; None where unknown.
        cause: Why it ended; None while it lives.
    """

    attempt: Attempt
    queued_s: float | None
    cause: str | None
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What a run wrote down: the lines of metrics.jsonl and of saves.jsonl, oldest first."""

    metrics: Sequence[Mapping[str, Any]]
    saves: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The seconds of one attempt; see the module. None where nothing is known."""

    attempt: int
    cause: str | None
    gpus: int
    total_s: float | None
    queued_s: float | None
    useful_steps: int | None = None
    lost_steps: int | None = None
    startup_s: float | None = None
    useful_s: float | None = None
    lost_s: float | None = None
    saving_s: float | None = None
    stopping_s: float | None = None
    other_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the ends of one cause cost; `gpu_s` is the allocated part: without the queue."""

    ends: int
    lost_s: float
    stopping_s: float
    startup_s: float
    queued_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A run's seconds. `entries` has its attempts, oldest first."""

    entries: tuple[Entry, ...]
    wall_s: float | None
    goodput: float | None
    queued_s: float
    startup_s: float
    useful_s: float
    lost_s: float
    saving_s: float
    stopping_s: float
    other_s: float
    node_s: float
    gpu_s: float
    gpu_goodput: float | None
    useful_steps: int
    lost_steps: int
    lost_by_cause: Mapping[str, Cost] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the run's part as JSON's types, with four decimals."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "entries"}
        costs = {cause: _rounded(asdict(cost)) for cause, cost in self.lost_by_cause.items()}
        return {**_rounded(plain), "lost_by_cause": costs}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}


def account(
    rows: Sequence[Row],
    books: Books,
    *,
    checkpoint_step: int | None,
    world_size: int,
    nproc_per_node: int,
    submitted_at: float | None,
    now: float,
    over: bool,
) -> Ledger:
    """Return the ledger of a run.

    Args:
        rows: Its attempts, oldest first.
        books: What it wrote down.
        checkpoint_step: The newest complete checkpoint.
        world_size: Ranks of an attempt whose metrics do not say.
        nproc_per_node: Ranks of a node.
        submitted_at: When it was first submitted; None counts from the first attempt.
        now: The time now; all times in seconds since 1970.
        over: Nothing starts it again, so that its time has ended.
    """
    steps, saves = steps_by_attempt(books.metrics), saves_by_attempt(books.saves)
    ends = [_end(row, steps, saves, now) for row in rows]
    judged = [
        _judge(steps.get(row.attempt.number, ()), _Kept.of(index, rows, checkpoint_step))
        for index, row in enumerate(rows)
    ]
    entries = []
    for row, end, verdict in zip(rows, ends, judged, strict=True):
        own = steps.get(row.attempt.number, ())
        entry = _outline(row, own, end, world_size=world_size)
        if own or (steps and entry.total_s is not None):
            mine = saves.get(row.attempt.number, []) if saves else None
            entry = _entry(entry, row, own, verdict, saves=mine, end=end)
        entries.append(entry)
    first = rows[0].attempt.started_at if rows else None
    began = submitted_at if submitted_at is not None else first
    told = [end for end in ends if end is not None]
    wall_s = _between(began, max(told) if over and told else now)
    return _sum(entries, _charged(judged), wall_s=wall_s, per_node=nproc_per_node)


def _outline(row: Row, own: Sequence[Step], end: float | None, *, world_size: int) -> Entry:
    """Return what is known of an attempt without its pieces."""
    return Entry(
        attempt=row.attempt.number,
        cause=row.cause,
        gpus=next((s.world_size for s in reversed(own) if s.world_size), world_size),
        total_s=_between(row.attempt.started_at, end),
        queued_s=row.queued_s,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _end(row: Row, steps: Steps, saves: Saves, now: float) -> float | None:
    """Return when an attempt ended; the last that was heard of it where nobody wrote that down."""
    attempt = row.attempt
    if row.alive:
        return now
    if attempt.ended_at is not None:
        return attempt.ended_at
    heard = [attempt.heard_at, *(step.at for step in steps.get(attempt.number, []))]
    heard += [at for at, _ in saves.get(attempt.number, [])]
    return max((at for at in heard if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Which steps of an attempt count.

    Attributes:
        upto: Later steps are lost; None where none is.
        cuts: (step, index of the attempt whose end undid what came after it), downwards.
    """

    upto: int | None
    cuts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, index: int, rows: Sequence[Row], checkpoint_step: int | None) -> "_Kept":
        """Return it for the attempt at ``index``."""
        cuts: list[tuple[int, int]] = []
        for later in range(index + 1, len(rows)):
            resumed = rows[later].attempt.resumed
            if resumed is not None and (not cuts or resumed < cuts[-1][0]):
                cuts.append((resumed, later - 1))
        if cuts:
            return cls(cuts[-1][0], tuple(cuts))
        attempt = rows[index].attempt
        if rows[index].alive or "finished" in (attempt.outcome, attempt.action):
            return cls(None, ())
        upto = checkpoint_step or 0
        return cls(upto, ((upto, index),))

    def undone_by(self, step: int) -> int | None:
        """Return the index of the attempt whose end undid ``step``; None if it counts."""
        if self.upto is None or step <= self.upto:
            return None
        return next(index for upto, index in self.cuts if step > upto)


@dataclass(frozen=True, slots=True)
class _Judged:
    """Which of an attempt's steps count, and in `undone` whose end undid how many seconds."""

    useful_steps: int
    useful_s: float
    lost_steps: int
    lost_s: float
    undone: tuple[tuple[int, float], ...]


def _judge(own: Sequence[Step], kept: _Kept) -> _Judged:
    newest = {line.step: index for index, line in enumerate(own)}
    useful: list[float] = []
    lost: list[float] = []
    undone = []
    for index, line in enumerate(own):
        took = line.step_s or 0.0
        again = newest[line.step] != index  # workers that were started again within the attempt
        guilty = kept.undone_by(line.step)
        (lost if again or guilty is not None else useful).append(took)
        if guilty is not None:
            undone.append((guilty, took))
    return _Judged(len(useful), sum(useful), len(lost), sum(lost), tuple(undone))


def _charged(judged: Sequence[_Judged]) -> list[float]:
    """Return for each attempt the seconds of steps that its end undid."""
    charged = [0.0] * len(judged)
    for guilty, lost_s in (one for verdict in judged for one in verdict.undone):
        charged[guilty] += lost_s
    return charged


def _entry(
    entry: Entry,
    row: Row,
    own: Sequence[Step],
    judged: _Judged,
    *,
    saves: Sequence[tuple[float, float]] | None,
    end: float | None,
) -> Entry:
    """Return ``entry`` with its pieces; ``saves`` is None where the run wrote none down."""
    counted = replace(entry, useful_steps=judged.useful_steps, lost_steps=judged.lost_steps)
    if own and all(line.step_s is None for line in own):
        return counted
    blocked = [took for _, took in saves] if saves is not None else [s.blocked_s or 0 for s in own]
    found = replace(
        counted,
        startup_s=_startup(entry, row, own),
        useful_s=judged.useful_s,
        lost_s=judged.lost_s,
        saving_s=sum(blocked),
        stopping_s=_stopping(row, own, saves or [], end),
    )
    spent = sum(getattr(found, name) or 0.0 for name in _PARTS)
    rest_s = None if entry.total_s is None else max(0.0, entry.total_s - spent)
    return replace(found, other_s=rest_s)


def _startup(entry: Entry, row: Row, own: Sequence[Step]) -> float | None:
    if not own:
        return entry.total_s
    first = own[0]
    if first.at is None or first.step_s is None:
        return None
    return _between(row.attempt.started_at, first.at - first.step_s)


def _stopping(
    row: Row, own: Sequence[Step], saves: Sequence[tuple[float, float]], end: float | None
) -> float | None:
    last = next((line.at for line in reversed(own) if line.at is not None), None)
    if row.alive:
        return None
    if last is None or end is None or row.attempt.ended_at is None:
        return 0.0
    return max(0.0, end - last - sum(took for at, took in saves if at > last))


def _sum(
    entries: Sequence[Entry], charged: Sequence[float], *, wall_s: float | None, per_node: int
) -> Ledger:
    names = ("queued_s", *_PARTS)
    total = {name: sum(getattr(entry, name) or 0.0 for entry in entries) for name in names}
    known = any(entry.useful_s is not None for entry in entries) and not any(
        entry.useful_steps and entry.useful_s is None for entry in entries
    )
    gpu_s = sum((entry.total_s or 0.0) * entry.gpus for entry in entries)
    useful_gpu_s = sum((entry.useful_s or 0.0) * entry.gpus for entry in entries)
    nodes = [max(1, -(-entry.gpus // max(1, per_node))) for entry in entries]
    return Ledger(
        entries=tuple(entries),
        wall_s=wall_s,
        goodput=min(1.0, total["useful_s"] / wall_s) if known and wall_s else None,
        gpu_goodput=min(1.0, useful_gpu_s / gpu_s) if known and gpu_s else None,
        node_s=sum((e.total_s or 0.0) * n for e, n in zip(entries, nodes, strict=True)),
        gpu_s=gpu_s,
        useful_steps=sum(entry.useful_steps or 0 for entry in entries),
        lost_steps=sum(entry.lost_steps or 0 for entry in entries),
        lost_by_cause=_costs(entries, charged),
        **total,
    )


def _costs(entries: Sequence[Entry], charged: Sequence[float]) -> dict[str, Cost]:
    """Return what the ends of each cause cost; nothing came after the last step of a run."""
    costs: dict[str, Cost] = {}
    for index, entry in enumerate(entries):
        if entry.cause is None or entry.cause == "finished":
            continue
        after = entries[index + 1] if index + 1 < len(entries) else None
        startup_s = (after.startup_s or 0.0) if after else 0.0
        stopping_s = entry.stopping_s or 0.0
        known = costs.get(entry.cause, Cost(**dict.fromkeys(Cost.__slots__, 0)))
        there = (charged[index] + stopping_s) * entry.gpus
        costs[entry.cause] = Cost(
            ends=known.ends + 1,
            lost_s=known.lost_s + charged[index],
            stopping_s=known.stopping_s + stopping_s,
            startup_s=known.startup_s + startup_s,
            queued_s=known.queued_s + ((after.queued_s or 0.0) if after else 0.0),
            gpu_s=known.gpu_s + there + startup_s * (after.gpus if after else 0),
        )
    return costs
