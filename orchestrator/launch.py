"""From a job file to a run: read, plan, render, create the run directory, submit."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import plan as planning
from orchestrator import script, store, watch
from orchestrator.errors import SpecError, SubmitError
from orchestrator.fields import no_control
from orchestrator.layout import RunLayout
from orchestrator.plan import LaunchPlan
from orchestrator.profile import load_profile
from orchestrator.spec.job import JobSpec, check_script, load_job
from orchestrator.spec.train import check_batch


@dataclass(frozen=True, slots=True)
class Launch:
    """A run as it would be submitted: the same value is printed by a dry run and used by submit."""

    layout: RunLayout
    plan: LaunchPlan
    files: dict[str, str]


def prepare(job: Path, *, runs: Path, site: str | None, overrides: Sequence[str]) -> Launch:
    """Return the run that the job file ``job`` describes. Touches nothing on the disk.

    Raises:
        InputError: The job file, the site profile or an override cannot be used.
    """
    chosen = [f"site={json.dumps(site, ensure_ascii=False)}"] if site is not None else []
    spec = load_job(job, overrides=[*overrides, *chosen])
    check_script(spec)
    profile = load_profile(spec.site, base=Path.cwd() if chosen else job.absolute().parent)
    layout = RunLayout(_run_dir(runs, spec.name))
    cwd = _usable(Path.cwd(), "workdir")
    plan = planning.plan(spec, profile, layout=layout, cwd=cwd, python=sys.executable)
    if spec.train is not None:
        check_batch(spec.train, plan.world_size)
    return Launch(layout, plan, _files(job, spec, plan))


def _run_dir(runs: Path, name: str) -> Path:
    path = _usable(runs.absolute() / name, "--runs")
    # `%` starts a pattern in --output. A backslash there ends all patterns and is dropped itself
    # (measured on 22.05): the job dies at its start for want of a folder for its log.
    if found := re.search(r"[%\\]", str(path)):
        raise SpecError(
            f"--runs: {str(path)!r} contains {found.group()!r}, which Slurm reads as a pattern;"
            " choose another directory"
        )
    return path


def _usable(path: Path, what: str) -> Path:
    try:
        no_control(str(path))
    except ValueError as problem:
        raise SpecError(f"{what}: {str(path)!r} {problem}, or choose another directory") from None
    return path


def _files(job: Path, spec: JobSpec, plan: LaunchPlan) -> dict[str, str]:
    files = {
        "job.yaml": job.read_text(encoding="utf-8"),
        "spec.json": spec.model_dump_json(indent=2) + "\n",
        "plan.json": json.dumps(plan.to_json(), indent=2) + "\n",
        **script.render(plan),
    }
    if spec.train is not None:
        files["train.json"] = spec.train.model_dump_json(indent=2) + "\n"
    return files


def submit(launch: Launch) -> str:
    """Create the run directory, submit its script and return the job id.

    Raises:
        RunError: There is a run of this name.
        SubmitError: The scheduler refused; the run directory is gone again.
        SubmitUnknownError: No answer; the run directory stays, and a watcher finds out.
    """
    # The directory appears with its submission under way: a watcher that finds it in the meantime
    # takes it for one without an answer yet, and waits.
    created = store.event("created", site=launch.plan.site, job_name=launch.plan.job_name)
    under_way = {"events.jsonl": created + store.event("submitting")}
    store.create(launch.layout, {**launch.files, **under_way})
    try:
        return watch.start(launch.layout, launch.plan)
    except SubmitError:
        store.discard(launch.layout)
        raise
