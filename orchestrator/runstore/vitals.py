"""Reads what the nodes of a live attempt say of its ranks: does it hang, does one slow the others.

Cheap, because it is read at every look: one small file a node. Stacks are read only once it hangs.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.evidence import files
from orchestrator.judging import hangs, stragglers
from orchestrator.nodelist import expand, node_of
from orchestrator.rundir.attempt import Hang, Straggler
from orchestrator.rundir.beat import number, word
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.rundir.limits import Limits
from orchestrator.rundir.node_report import NodeReport
from orchestrator.rundir.worker_logs import have_begun
from orchestrator.runstore import store

# How far the clocks of rank 0's node and of the reader may be apart, and NFS behind.
_SLACK_S = 180.0
_RANK = re.compile(r"rank-(\d{1,7})\.txt")
_STACK_BYTES = 200_000


def read(layout: AttemptLayout, *, now: float) -> tuple[Hang | None, Straggler | None]:
    """Return whether the attempt hangs, and which rank slows it down.

    Args:
        layout: The attempt.
        now: In seconds since 1970.
    """
    reports = node_reports(layout)
    if any(hangs.is_fresh(report, now) for report in reports):
        if not any(report.ranks for report in reports):
            return _never_began(layout, reports, now=now), None
        found = hangs.stuck(reports, now=now)
        if found is not None:
            return hangs.explain(found, stacks=stacks(layout)), None
        return None, stragglers.straggler(reports, now=now)
    return _by_progress(layout, reports, now=now), None


def node_reports(layout: AttemptLayout) -> list[NodeReport]:
    """Return what the monitors wrote; none where there are none."""
    paths = _listing(layout.nodes, "*.json")
    found = (store.read_json(path) for path in paths)
    reports = [NodeReport.from_json(data) for data in found if data is not None]
    return [report for report in reports if report is not None]


def stacks(layout: AttemptLayout) -> dict[int, str]:
    """Return the stacks that ranks wrote, by rank."""
    found = {}
    for path in _listing(layout.stacks, "rank-*.txt"):
        if (match := _RANK.fullmatch(path.name)) and (text := files.tail(path, _STACK_BYTES)):
            found[int(match[1])] = text
    return found


def _never_began(
    layout: AttemptLayout, reports: Sequence[NodeReport], *, now: float
) -> Hang | None:
    """Return whether the workers were never started: torchrun waits for a node that is not there.

    A node that booted again in time is up for the scheduler, and its part of the job is gone. The
    workers of a script that knows nothing of fsdpq are known by their logs.
    """
    start = store.read_json(layout.start) or {}
    began, limits = number(start.get("started_at")), _limits(layout)
    if began is None or limits is None or now - began <= limits.start_s or have_begun(layout):
        return None
    nodes = expand(str(start.get("nodes")))
    heard = {node_of(report.node, nodes) for report in reports}
    silent = () if "" in heard else tuple(node for node in nodes if node not in heard)
    said = f"nothing was heard of {', '.join(silent)}" if silent else "all nodes are there"
    return Hang(
        why=f"no worker has begun in {now - began:.0f} s (limit {limits.start_s:.0f} s): {said}",
        idle_s=now - began,
        over_s=now - began - limits.start_s,
        nodes=silent,
    )


def _limits(layout: AttemptLayout) -> Limits | None:
    with suppress(RunError):
        limits = store.load_plan(RunLayout(layout.root.parents[1])).hang
        return limits if limits.enabled else None
    return None


def _by_progress(
    layout: AttemptLayout, reports: Sequence[NodeReport], *, now: float
) -> Hang | None:
    """Return whether the attempt hangs by what rank 0 alone says, where no monitor does."""
    told = store.read_json(layout.progress) or {}
    at, limit_s = number(told.get("at")), number(told.get("limit_s"))
    # Without a step it is a script that does not tell its steps, or one that starts.
    if number(told.get("step")) is None:
        return None
    if at is None or limit_s is None or now - at <= limit_s + _SLACK_S:
        return None
    phase = word(told.get("phase")) or "the work"
    silent = "the monitors of its nodes are silent" if reports else "no node has a monitor"
    return Hang(
        why=f"rank 0 has not got on for {now - at:.0f} s ({phase}, limit {limit_s:.0f} s);"
        f" {silent}, so which rank did not arrive is not known",
        idle_s=now - at,
        over_s=now - at - limit_s,
    )


def _listing(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
