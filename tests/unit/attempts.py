"""Attempts that ended, as they leave their files behind, and what is read from those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.judging.classify import Verdict, classify
from orchestrator.rundir.attempt import Finding
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import facts
from orchestrator.scheduler import JobState

from .builders import job

DATA = Path(__file__).parents[1] / "data" / "torchrun-2.13"


def begin(run: RunLayout, number: int = 1, nodes: str = "n[1-2]") -> AttemptLayout:
    """Begin an attempt: its folders, its start, and its line in batch.log."""
    layout = run.attempt(number)
    for folder in (layout.errors, layout.logs, layout.nccl):
        folder.mkdir(parents=True)
    start = {"job_id": "7", "restart": number - 1, "nodes": nodes, "started_at": 1000}
    layout.start.write_text(json.dumps(start))
    say(run, f"2026-11-29 22:00:00 fsdpq: attempt {number}: job 7, restart 0, on {nodes}\n")
    return layout


def say(run: RunLayout, text: str) -> None:
    """Add to the batch.log of the run."""
    with run.output.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def stderr(layout: AttemptLayout, node: int, local: int, text: str | bytes) -> None:
    """Write what one rank of a node said."""
    path = layout.logs / f"node-{node}" / "none_x" / "attempt_0" / str(local) / "stderr.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def error(layout: AttemptLayout, rank: int, exception: str, **changes: Any) -> None:
    """Write the error file of a rank of n2."""
    data = {"rank": rank, "node": "n2", "step": 41, "exception": exception, "at": 5.0, **changes}
    (layout.errors / f"rank-{rank}.json").write_text(json.dumps(data))


def played(run: RunLayout, name: str, nodes: str = "n1") -> AttemptLayout:
    """An attempt that ended as a real one did."""
    layout = begin(run, nodes=nodes)
    say(run, (DATA / name / "batch.log").read_text(encoding="utf-8"))
    for path in (DATA / name).glob("rank-*.stderr"):
        stderr(layout, 0, int(path.stem[5:]), path.read_bytes())
    return layout


def findings(run: RunLayout, number: int = 1) -> tuple[Finding, ...]:
    """Return what is found in the files of an attempt."""
    (found,) = [a for a in facts.attempts(run) if a.number == number]
    return facts.ended(run, found).findings


def verdict(run: RunLayout, state: JobState = JobState.FAILED) -> Verdict:
    """Return why the newest attempt ended, if that is all that Slurm says."""
    found = facts.latest(run)
    assert found is not None
    return classify(job(state=state), facts.ended(run, found))
