"""Put together what `report` needs to know of a run. Reads, never writes."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import report
from orchestrator.decide import Action
from orchestrator.fabric import record
from orchestrator.judging.ledger import Books
from orchestrator.nodelist import expand
from orchestrator.report import Status, Told
from orchestrator.rundir.attempt import Attempt
from orchestrator.rundir.cause import Cause
from orchestrator.runstore import facts, store
from orchestrator.runstore.sight import Sight

_TAIL_BYTES = 65536
# Attempts whose logs are read for a single run's status; older ones are told by their events.
_JUDGED = 32
# When an attempt has said what network it uses; its own first node then writes that down.
_PROOF_S = 90.0


def of(sight: Sight, action: Action, *, whole: bool = False) -> Status:
    """Return the status of the run that is seen.

    Args:
        sight: What is seen of it.
        action: What is to be done about it.
        whole: Read all of its metrics, for the ledger. Without, only their end is read: of a
            run among many, or of one that is looked at every few seconds. Also looks into the
            logs of earlier attempts for why they ended.
    """
    layout = sight.layout
    events = store.events(layout)
    times = [e["at"] for e in events if e["kind"] == "submitting"]
    newest = last_line(layout.metrics)
    lines = store.read_lines(layout.metrics) if whole else [newest]
    return report.status(
        sight,
        action,
        attempts=_attempts(sight, metrics=lines, thorough=whole),
        metrics=_numbers(newest),
        told=_told(events),
        submitted_at=times[0] if times else None,
        books=Books(metrics=lines, saves=store.read_lines(layout.saves)) if whole else None,
        environment_changes=facts.environment_changes(layout) if whole else (),
        bandwidth=facts.bandwidth(layout) if whole else None,
        validation=_validation(lines) if whole else None,
    )


def _numbers(told: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, item in told.items() if (value := facts.number(item)) is not None}


def _validation(lines: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the newest validation; a script of one's own may log anything as `eval`."""
    told = (line.get("eval") for line in reversed(lines))
    numbers = (_numbers(found) for found in told if isinstance(found, Mapping))
    return next((found for found in numbers if found.keys() >= {"step", "loss"}), None)


def _told(events: Iterable[Mapping[str, Any]]) -> dict[int, Told]:
    """Return what was found of each attempt's end when there was still a record, by number."""
    found: dict[int, Told] = {}
    for event in events:
        number, cause = event.get("attempt"), str(event.get("cause"))
        if event["kind"] not in ("restart", "attempt ended") or not isinstance(number, int):
            continue
        before = found.get(number, Told(at=event["at"]))
        vague = event["kind"] == "attempt ended" and cause in (Cause.GONE, Cause.NOTICE)
        why = before.why if vague else str(event.get("why") or "")
        found[number] = Told(before.cause if vague else cause, why, before.at)
    return found


def _attempts(
    sight: Sight, *, metrics: Iterable[Mapping[str, Any]], thorough: bool
) -> list[Attempt]:
    found = facts.attempts(sight.layout, metrics=metrics)
    judged = sight.seen.attempt
    if judged is not None and judged.findings and found and found[-1].number == judged.number:
        found[-1] = replace(found[-1], findings=judged.findings, error=judged.error)
    if not thorough:
        return found
    if found:
        found[-1] = _with_network(sight, found[-1])
    jobs = sight.seen.jobs
    alive = jobs is None or any(job.live for job in jobs)
    newest = found[-1].number if found and alive else None
    return found[:-_JUDGED] + [
        facts.ended(sight.layout, attempt) if _untold(attempt, newest) else attempt
        for attempt in found[-_JUDGED:]
    ]


def _with_network(sight: Sight, attempt: Attempt) -> Attempt:
    """Return an attempt with a verdict on its network also where nobody in its job gave one."""
    nodes = len(expand(attempt.nodes))
    young = attempt.started_at is None or sight.seen.now - attempt.started_at < _PROOF_S
    if attempt.network is not None or nodes < 2 or young:
        return attempt
    files, plan = sight.layout.attempt(attempt.number), sight.plan
    looked = record.look(files, plan.fabric, nodes=nodes)
    network = record.of_diagnosis(looked, require=False, at=sight.seen.now)
    return replace(attempt, network=None if network.verdict == "unknown" else network)


def _untold(attempt: Attempt, alive: int | None) -> bool:
    """Return whether only the logs of an attempt can say how it ended; ``alive`` may still run."""
    over = attempt.number != alive or bool(attempt.action)
    return over and attempt.outcome not in ("finished", "stopped") and not attempt.findings


def last_line(path: Path) -> dict[str, Any]:
    """Return the last whole JSON line of ``path``; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(item, dict):
            return item
    return {}
