"""From a job file to a run: read, plan, render, create the run directory, submit."""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestrator import resources, snapshot
from orchestrator.errors import SpecError, SubmitError
from orchestrator.keys.fields import no_control
from orchestrator.launchplan import fitness, placement, script
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.snapshot import Code
from orchestrator.spec.job import JobSpec, check_script
from orchestrator.spec.train import check_batch, check_local_copy
from orchestrator.submitting import remarks, starting
from orchestrator.submitting.described import Described, read


@dataclass(frozen=True, slots=True)
class Launch:
    """A run as it would be submitted: the same value is printed by a dry run and used by submit.

    Attributes:
        files: Text by name, for the run directory.
        code: What of the program goes there too.
        notes: What looks like a mistake and may be none.
    """

    layout: RunLayout
    plan: LaunchPlan
    files: dict[str, str]
    code: Code
    notes: tuple[str, ...] = ()


def prepare(
    job: Path,
    *,
    runs: Path,
    site: str | None,
    overrides: Sequence[str],
    live_code: bool = False,
) -> Launch:
    """Return the run that the job file ``job`` describes. Touches nothing on the disk.

    Args:
        job: The job file.
        runs: Where the run directories are.
        site: The site instead of the job's; None leaves it.
        overrides: Such as ``nodes=4``.
        live_code: Whether every attempt is to run the program's files as they are then.

    Raises:
        InputError: The job file, the site profile or an override cannot be used.
    """
    described = read(job, site=site, overrides=overrides)
    if live_code:
        code = described.spec.code.model_copy(update={"live": True})
        described = replace(described, spec=described.spec.model_copy(update={"code": code}))
    return ready(described, runs=runs)


def ready(described: Described, *, runs: Path, program: tuple[str, ...] | None = None) -> Launch:
    """Return the run of a job; ``program`` takes the place of the job's own.

    Raises:
        SpecError: The job does not fit the site.
    """
    job, spec, profile = described.job, described.spec, described.profile
    layout = RunLayout(_run_dir(runs, spec.name))
    cwd = _usable(Path.cwd(), "workdir")
    try:
        check_script(spec)
        spec = planning.settle(spec, profile)
        plan = planning.plan(spec, profile, layout=layout, cwd=cwd, python=sys.executable)
        if program is not None:
            plan = replace(plan, program=program)
        if spec.train is not None:
            check_batch(spec.train, plan.world_size)
            check_local_copy(spec.train.checkpoint.local_copy, layout.root)
        code = snapshot.find(spec)
        caller_path = os.environ.get("PYTHONPATH", "")
        plan = snapshot.settle(plan, code, spec, caller_path=caller_path)
        planning.check_mounts(plan)
    except SpecError as problem:
        raise SpecError(f"{job}: {problem}") from None
    placed = placement.notes(spec, profile, nproc=plan.nproc_per_node)
    warnings = remarks.of_lint(replace(described, spec=spec), layout)
    notes = (*remarks.of_job(spec, profile), *placed, *code.notes, *warnings)
    files = _files(job, spec, plan)
    if plan.preflight:
        expected = fitness.expected(spec, profile, workers=plan.nproc_per_node)
        files[layout.preflight.name] = json.dumps(expected.to_json(), indent=2) + "\n"
    return Launch(layout, plan, files, code, notes)


def _run_dir(runs: Path, name: str) -> Path:
    # Not resolve(): what a link leads to on the login node may have another path on the nodes.
    path = _usable(Path(os.path.abspath(runs)) / name, "--runs")  # noqa: PTH100
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
        "recorder.py": resources.recorder(),
        **script.render(plan),
    }
    if spec.train is not None:
        files["train.json"] = spec.train.model_dump_json(indent=2) + "\n"
    return files


def submit(launch: Launch) -> str:
    """Create the run directory, submit its script and return the job id.

    Raises:
        RunError: There is a run of this name, or its program cannot be copied.
        SubmitError: The scheduler refused; the run directory is gone again.
        SubmitUnknownError: No answer; the run directory stays, and a watcher finds out.
    """
    store.create(launch.layout, launch.files, fill=partial(_fill, launch))
    try:
        return starting.start(launch.layout, launch.plan)
    except SubmitError:
        store.discard(launch.layout)
        raise


def _fill(launch: Launch, draft: Path) -> None:
    """Put the program and the first events into the run directory that ``draft`` will be.

    It appears with its submission under way: a watcher that finds it in the meantime takes it for
    one without an answer yet, and waits. The time of that counts from the end of the copy.
    """
    snapshot.keep(launch.code, draft)
    run = RunLayout(draft)
    store.append(run, "created", site=launch.plan.site, job_name=launch.plan.job_name)
    store.append(run, "submitting")
