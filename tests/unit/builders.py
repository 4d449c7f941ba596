"""Values that many tests need, each with the one thing changed that a test is about."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from orchestrator.decide import History, Observation, Policy, Restarted
from orchestrator.errors import SpecError
from orchestrator.keys.fields import validate
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.profile import SiteProfile
from orchestrator.rundir.attempt import Attempt, Finding, RankError, Weight
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import RunLayout
from orchestrator.rundir.node_report import NodeReport, RankReport
from orchestrator.scheduler import JobRecord, JobState
from orchestrator.spec.job import JobSpec
from orchestrator.spec.restart import BudgetSpec

DATA = Path(__file__).parents[1] / "data" / "slurm-22.05"
NOW = 1_800_000_000.0

JOB: dict[str, Any] = {"name": "llama", "site": "here", "script": "/work/train.py"}
SITE: dict[str, Any] = {
    "name": "here",
    "description": "a cluster",
    "source": ["nowhere"],
    "checked": "2026-11-29",
    "confidence": "own",
    "fabric": {"kind": "ethernet"},
}


def spec(**changes: Any) -> JobSpec:
    """Return a small job."""
    return validate(JobSpec, {**JOB, **changes}, where=Path("job.yaml"), error=SpecError)


def site(**changes: Any) -> SiteProfile:
    """Return a small Slurm site."""
    return SiteProfile.model_validate({**SITE, **changes})


def plan(job: JobSpec | None = None, at: SiteProfile | None = None, **fixed: Any) -> LaunchPlan:
    """Return the plan of a job on a site, with the fields in ``fixed`` replaced."""
    made = planning.plan(
        job or spec(),
        at or site(),
        layout=RunLayout(Path("/runs/llama")),
        cwd=Path("/home/alice"),
        python="/venv/bin/python",
    )
    return dataclasses.replace(made, **fixed)


def job(job_id: str = "7", state: JobState = JobState.RUNNING, **changes: Any) -> JobRecord:
    """Return a job of the run; one that has ended did so a minute ago."""
    ended = {"end": NOW - 60.0, "exit_code": 1} if state.ended else {}
    return JobRecord(**{"job_id": job_id, "name": "llama-1", "state": state, **ended, **changes})


def attempt(number: int = 1, **changes: Any) -> Attempt:
    """Return an attempt of job 7 that runs, or ran, and has said nothing."""
    silent: dict[str, Any] = {
        "number": number,
        "job_id": "7",
        "restart": 0,
        "nodes": "n[1-2]",
        "started_at": NOW - 1000.0,
        "ended_at": None,
        "resumed": 0,
        "last_step": None,
        "saved_step": None,
        "outcome": "",
        "reason": "",
        "action": "",
        "why": "",
        "noticed": False,
        "heard_at": None,
        "quarantined": (),
        "error": None,
    }
    return Attempt(**{**silent, **changes})


def rank_error(exception: str = "ValueError: bad batch", **changes: Any) -> RankError:
    """Return the exception that ended rank 3."""
    fields: dict[str, Any] = {"rank": 3, "node": "n2", "step": 41, "at": NOW - 61.0}
    return RankError(**{**fields, **changes}, exception=exception)


def finding(
    kind: str = "exception",
    cause: Cause = Cause.WORKER_ERROR,
    weight: Weight = Weight.OWN,
    **changes: Any,
) -> Finding:
    """Return a piece of evidence without rank or node."""
    return Finding(kind=kind, cause=cause, weight=weight, **{"what": f"it was {kind}", **changes})


def seen(*jobs: JobRecord, **changes: Any) -> Observation:
    """Return what is seen of a run with ``jobs``."""
    plain: dict[str, Any] = {
        "finished": False,
        "cancelled_at": None,
        "jobs": jobs,
        "silent": "",
        "attempt": None,
        "checkpoint_step": None,
        "now": NOW,
    }
    return Observation(**{**plain, **changes})


def past(**changes: Any) -> History:
    """Return the history of a run whose job 7 was submitted; restarts are given as tuples."""
    restarts = tuple(Restarted(*item) for item in changes.pop("restarts", ()))
    return History(**{"submitted": ("7",), "restarts": restarts, **changes})


POLICY = Policy(max_no_progress=3, delay_s=15.0, budgets=BudgetSpec().by_cause())


def write_job(folder: Path, **changes: Any) -> Path:
    """Write a job file with a script that is there, and return its path."""
    script = folder / "train.py"
    script.touch()
    path = folder / "job.yaml"
    data = {"name": "llama", "site": "local", "script": str(script), **changes}
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return path


def make_run(root: Path, **fixed: Any) -> RunLayout:
    """Make a run directory with a plan in it, and no more."""
    layout = RunLayout(root)
    for folder in (layout.attempts, layout.checkpoints, layout.claims, layout.submitit):
        folder.mkdir(parents=True)
    made = plan(run=root.name, run_dir=str(root), **fixed)
    layout.plan.write_text(json.dumps(made.to_json()), encoding="utf-8")
    return layout


def rank_report(rank: int = 0, **changes: Any) -> RankReport:
    """Return a rank that has just done step 41 and may take 300 s for the next one."""
    fields: dict[str, Any] = {
        "world_size": 1,
        "pid": 100 + rank,
        "alive": True,
        "stopped": False,
        "step": 41,
        "phase": "training",
        "waiting": False,
        "idle_s": 1.0,
        "limit_s": 300.0,
    }
    merged = {**fields, **changes}
    limit_s = merged["limit_s"]
    merged["stalled"] = limit_s is not None and merged["idle_s"] > limit_s
    return RankReport(rank=rank, **merged)


def node_report(*ranks: RankReport, node: str = "n1", at: float = NOW - 5.0) -> NodeReport:
    """Return what a node has just said of its ranks."""
    return NodeReport(node=node, at=at, ranks=ranks)
