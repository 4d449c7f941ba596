"""What the watchers of a round find: a run whose job has ended in one of many ways, or will."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.launchplan import script
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from tests.rounds.clock import Clock
from tests.rounds.jobs import Slurm
from tests.unit import builders

REPOSITORY = Path(__file__).parents[2]
MIN_JOB_AGE_S = 300.0
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "srun")
_PROGRAM = """#!/bin/sh
exec {python} -S -E -X pycache_prefix={cache} -c 'import sys; sys.path[0] = sys.argv.pop(1)
from tests.rounds.commands import main; main(sys.argv[1], sys.argv[2], sys.argv[3:])' \
  {repository} {command} {folder} "$@"
"""


def build(folder: Path, kind: str, rng: Random) -> RunLayout:
    """Make the run and its Slurm in ``folder``, and let come what ``kind`` says."""
    layout = RunLayout(folder / "runs" / "llama")
    _make_slurm(folder, rng)
    _make_run(layout)
    with Slurm(str(folder)) as slurm:
        SCENES[kind](slurm, layout, rng)
    return layout


def _make_slurm(folder: Path, rng: Random) -> None:
    (folder / "bin").mkdir(parents=True)
    for command in COMMANDS:
        program = _PROGRAM.format(
            python=shlex.quote(sys.executable),
            cache=shlex.quote(str(folder.parent / "pycache")),
            repository=shlex.quote(str(REPOSITORY)),
            command=command,
            folder=shlex.quote(str(folder)),
        )
        path = folder / "bin" / command
        path.write_text(program)
        path.chmod(0o700)
    Clock(f"{folder}/clock").forward(0.0)
    state = {
        "next_id": 7,
        "jobs": {},
        "accounting": [],
        "arrivals": [],
        "faults": [],
        "lives": _lives(rng),
        "step": 0,
        "min_job_age_s": MIN_JOB_AGE_S,
        "accounting_off": False,
    }
    (folder / "state.json").write_text(json.dumps(state))


def _lives(rng: Random) -> list[dict[str, Any]]:
    """How the next starts of the job end; after these, it runs on for good."""
    ends = ["FAILED", "PREEMPTED", "TIMEOUT", "lost node", "saved"]
    lives = [
        {"after_s": rng.choice([1.0, 5.0, rng.uniform(1.0, 200.0)]), "end": rng.choice(ends)}
        for _ in range(rng.choice([0, 0, 1, 1, 2]))
    ]
    return lives + ([{"after_s": 3.0, "end": "no progress"}] if rng.random() < 0.2 else [])


def _make_run(layout: RunLayout) -> None:
    plan = _plan(layout)
    created = json.dumps({"at": time.time() - 5000.0, "kind": "created"}) + "\n"
    files = {
        "plan.json": json.dumps(plan.to_json()),
        "events.jsonl": created,
        **script.render(plan),
    }
    store.create(layout, files)


def _plan(layout: RunLayout) -> LaunchPlan:
    name = f"llama-{layout.root.parents[1].name}"
    made = builders.plan(run="llama", run_dir=str(layout.root), job_name=name)
    options = {**dict(made.directives), "job-name": name, "output": str(layout.output)}
    return builders.plan(
        run="llama",
        run_dir=str(layout.root),
        job_name=name,
        directives=tuple(options.items()),
        steps_total=100_000,
    )


# --- what has happened ------------------------------------------------------------------------


def _event(layout: RunLayout, at: float, kind: str, **facts: Any) -> None:
    line = json.dumps({"at": round(at, 3), "kind": kind, **facts}) + "\n"
    with layout.events.open("a") as file:
        file.write(line)


def _ran(slurm: Slurm, layout: RunLayout, *, end: str, ago_s: float) -> None:
    """The first job ran and ended so long ago."""
    at = slurm.now - ago_s
    slurm.state["lives"].insert(0, {"after_s": 600.0, "end": end})
    _event(layout, at - 600.0, "submitting")
    slurm.submit(str(layout.script), at - 600.0, by="fsdpq submit")
    _event(layout, at - 599.9, "submitted", job_id="7")
    slurm.pass_time()


def _ended(end: str) -> Callable[[Slurm, RunLayout, Random], None]:
    def scene(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
        _ran(slurm, layout, end=end, ago_s=rng.choice([0.5, 5.0, rng.uniform(0.0, 250.0)]))

    return scene


def _forgotten(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
    """Only accounting has it."""
    _ran(slurm, layout, end=rng.choice(["FAILED", "PREEMPTED", "TIMEOUT"]), ago_s=400.0)


def _unaccounted(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
    """No accounting on this site, and the controller has forgotten it."""
    slurm.state["accounting_off"] = True
    _forgotten(slurm, layout, rng)


def _refused(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
    """The site does not let an ended job be requeued."""
    _ran(slurm, layout, end="FAILED", ago_s=10.0)
    refuse = {"call": "requeue", "who": None, "fault": "refuse", "seconds": 0.0}
    slurm.state["faults"] += [refuse] * 40


def _unanswered(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
    """The first submission got no answer: its job is there, comes late, or never comes."""
    ago_s = rng.uniform(0.0, 230.0)
    asked = slurm.now - ago_s
    _event(layout, asked, "submitting")
    match rng.choice(["there", "late", "never"]):
        case "there":
            slurm.submit(str(layout.script), asked, by="fsdpq submit")
        case "late":
            at = asked + rng.uniform(0.0, 100.0)
            arrival = {"at": at, "script": str(layout.script), "by": "fsdpq submit"}
            slurm.state["arrivals"].append(arrival)


def _running(slurm: Slurm, layout: RunLayout, rng: Random) -> None:
    """It ends while they look."""
    end = rng.choice(["FAILED", "PREEMPTED", "lost node", "saved"])
    _ran(slurm, layout, end=end, ago_s=-rng.uniform(1.0, 40.0))


SCENES: dict[str, Callable[[Slurm, RunLayout, Random], None]] = {
    "failed": _ended("FAILED"),
    "preempted": _ended("PREEMPTED"),
    "time limit": _ended("TIMEOUT"),
    "lost node": _ended("lost node"),
    "put back": _ended("saved"),
    "forgotten": _forgotten,
    "no accounting": _unaccounted,
    "requeue refused": _refused,
    "no answer": _unanswered,
    "ends meanwhile": _running,
}
