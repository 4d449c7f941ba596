"""A run's status as text. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.judging.nodes import describe
from orchestrator.report import bandwidth
from orchestrator.report.books import ledger_lines
from orchestrator.report.columns import columns
from orchestrator.report.data import Status

# How many reasons are shown; all are in the events and in --json.
_REASONS = 5


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
    return "\n".join(
        [columns(rows), *(f"{i.run}: {line}" for i in statuses for line in network(i))]
    )


def network(item: Status) -> list[str]:
    """Return what is wrong with the network of the newest attempt, a line if anything is."""
    found = item.network
    if found is None or not found.flagged:
        return []
    return [f"network: {found.why} ({found.verdict}). {found.advice}"]


def details(item: Status) -> str:
    """Return all there is to say about one run."""
    lines = [
        overview([replace(item, network=None)]),
        "",
        columns(_attempts(item)),
        *_validation(item),
        *_reasons(item),
        *ledger_lines(item),
        *_remarks(item),
    ]
    return "\n".join(lines)


def _attempts(item: Status) -> list[tuple[str, ...]]:
    head = ("ATTEMPT", "JOB", "RESTART", "STATE", "STEPS", "LOST", "QUEUED", "NODES", "CAUSE")
    return [head, *(_attempt(row) for row in item.attempts)]


def _attempt(row: Mapping[str, Any]) -> tuple[str, ...]:
    queued = row["queued_s"]
    return (
        str(row["attempt"]),
        row["job_id"],
        str(row["restart"]),
        row["state"],
        _steps(row["first_step"], row["last_step"]),
        _text(row["steps_lost"]),
        "-" if queued is None else f"{queued:.0f} s",
        row["nodes"],
        row["cause"] or "",
    )


def _remarks(item: Status) -> list[str]:
    """Return what is out of the ordinary, a line each."""
    lines = [
        f"quarantined: checkpoint of step {step}: {reason}" for step, reason in item.quarantined
    ]
    lines += [str(change) for change in item.environment_changes]
    if item.bad_nodes:
        lines.append(f"left out: {describe(item.bad_nodes)}")
    if item.spread is not None:
        lines.append(f"attempt {item.attempt} {item.spread}")
    if item.bandwidth is not None:
        lines += bandwidth.lines(item.bandwidth)
    return [*lines, *network(item), *_faults(item)]


def _faults(item: Status) -> list[str]:
    told = {"hangs": item.hang, "slow": item.straggler}
    lines = [f"{what}: {why}" for what, why in told.items() if why is not None]
    if (error := item.error) is not None:
        lines.append(f"rank {error['rank']} on {error['node']}: {error['exception']}")
    return lines


def _steps(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return "-"
    done = last is None or first is None or last >= first
    return f"{_text(first)}..{_text(last)}" if done else "none"


def _validation(item: Status) -> list[str]:
    found = item.validation
    return [f"validation at step {found['step']}: loss {found['loss']:.4f}"] if found else []


def _reasons(item: Status) -> list[str]:
    """Return why the newest attempts ended that ended by a fault, a line each."""
    told = [row for row in item.attempts if row["why"] and row["state"] != "stopped"]
    return [f"attempt {row['attempt']}: {row['why']}" for row in told[-_REASONS:]]


def _text(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def progress(item: Status) -> str:
    """Return one line for a log: where, how far."""
    total = f"/{item.steps_total}" if item.steps_total else ""
    loss = f"  loss {item.loss:.4f}" if item.loss is not None else ""
    where = f"attempt {item.attempt}" if item.attempt else "no attempt yet"
    flag = f"  network {item.network.verdict}" if item.network and item.network.flagged else ""
    return f"{item.run}  {item.state}  {where}  step {_text(item.step)}{total}{loss}{flag}"
