"""What is left after a storm: read here, judged elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.runstore import store

from .judge import Evidence, Span
from .strike import Strike
from .world import Run, World

GONE_S = 90.0
TIME = "%Y-%m-%dT%H:%M:%S"


def evidence(world: World, run: Run, strikes: Sequence[Strike]) -> Evidence:
    """All that a run has left, once its jobs are over."""
    mark = store.read_json(run.layout.finished) or {}
    world.waited(lambda: not world.user.live_jobs(), GONE_S)
    world.waited(lambda: all(span.end for span in _spans(world, run)), GONE_S)
    return Evidence(
        number=run.number,
        goal=int((run.ledger / "goal").read_text()),
        finished=mark.get("step"),
        ranks=[tail.lines() for tail in run.tails],
        status=world.status(run),
        spans=_spans(world, run),
        strikes=strikes,
    )


def _spans(world: World, run: Run) -> list[Span]:
    """All starts of a run's jobs; those that never started are none."""
    fields = "--format=JobIDRaw,JobName,State,Start,End"
    argv = ["sacct", "-nXPD", "--user=alice", "--starttime=now-1days", fields]
    name = store.load_plan(run.layout).job_name
    rows = [line.split("|") for line in world.answered(argv).splitlines()]
    return [
        Span(job_id, state, start, _time(end))
        for job_id, job_name, state, began, end in rows
        if job_name == name and (start := _time(began)) is not None
    ]


def _time(text: str) -> float | None:
    return datetime.strptime(text, TIME).timestamp() if text.startswith("2") else None


def left(world: World) -> list[str]:
    """What is still there although all runs are over."""
    gone = [
        (lambda: not world.user.live_jobs(), "jobs in the queue"),
        (lambda: all(w.poll() == 0 for w in world.watchers.values()), "watchers that do not end"),
        (lambda: not _processes(world), "processes of the user"),
    ]
    return [f"left: {what}" for is_gone, what in gone if not world.waited(is_gone, GONE_S)]


def _processes(world: World) -> list[str]:
    hosts = [*world.cluster.nodes, "login"]
    return [host for host in hosts if world.on(host, ["pgrep", "--euid", "alice"])]


def inquest(world: World) -> str:
    """What a person needs to find the cause."""
    shown: list[Any] = [world.cluster.situation()]
    for run in world.runs:
        status = world.user.fsdpq("status", str(run.path), check=False)
        events = [str(event) for event in store.events(run.layout)[-12:]]
        shown += [status.stdout, status.stderr, *events]
    return "\n".join(shown)


def keep(world: World, wreck: Path) -> None:
    """Copy the runs, the ledgers, what watchers printed and Slurm's logs."""
    shutil.rmtree(wreck, ignore_errors=True)
    folders = {"user": world.user.home, "slurm": world.cluster.work / "log"}
    for name, folder in (folders | {run.name: run.layout.root for run in world.runs}).items():
        # Runs may go on meanwhile, so that files vanish; the others are copied all the same.
        with contextlib.suppress(shutil.Error):
            shutil.copytree(folder, wreck / name)


def not_gone(work: Path, *, timeout: float = GONE_S) -> list[str]:
    """Processes of this machine that still see a mount of a closed cluster, or its folder."""
    deadline = time.monotonic() + timeout
    while (found := _users_of(work)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"left: {name}" for name in found]


def _users_of(work: Path) -> list[str]:
    found = [str(work)] if work.exists() else []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(work) in (folder / "mountinfo").read_text():
                found.append(f"process {folder.name}, {(folder / 'comm').read_text().strip()}")
        except OSError:  # it has ended meanwhile
            continue
    return found
