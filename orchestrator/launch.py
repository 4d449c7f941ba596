"""From a job file to a run: read, plan, render, create the run directory, submit."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from orchestrator import act, fitness, linting, placement, resources, script, snapshot, store
from orchestrator import plan as planning
from orchestrator.errors import ProfileError, SpecError, SubmitError
from orchestrator.fields import no_control
from orchestrator.home import own_sites
from orchestrator.layout import RunLayout
from orchestrator.lint import Surroundings
from orchestrator.plan import LaunchPlan
from orchestrator.profile import SiteProfile, locate, read_profile
from orchestrator.snapshot import Code
from orchestrator.spec.job import JobSpec, check_script, load_job
from orchestrator.spec.train import check_batch


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


@dataclass(frozen=True, slots=True)
class Described:
    """A job and its site as their files have them."""

    job: Path
    spec: JobSpec
    site_file: Path
    profile: SiteProfile


def read(job: Path, *, site: str | None, overrides: Sequence[str]) -> Described:
    """Return the job in the file ``job`` and its site; see `prepare`.

    Raises:
        InputError: One of them cannot be used.
    """
    chosen = [f"site={json.dumps(site, ensure_ascii=False)}"] if site is not None else []
    spec = load_job(job, overrides=[*overrides, *chosen])
    site_file = _site_file(job, spec.site, chosen=bool(chosen))
    return Described(job, spec, site_file, read_profile(site_file, own=own_sites()))


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
        code = snapshot.find(spec)
        caller_path = os.environ.get("PYTHONPATH", "")
        plan = snapshot.settle(plan, code, spec, caller_path=caller_path)
        planning.check_mounts(plan)
    except SpecError as problem:
        raise SpecError(f"{job}: {problem}") from None
    placed = placement.notes(spec, profile, nproc=plan.nproc_per_node)
    warnings = _lint(replace(described, spec=spec), layout)
    notes = (*_notes(spec, profile), *placed, *code.notes, *warnings)
    files = _files(job, spec, plan)
    if plan.preflight:
        expected = fitness.expected(spec, profile, workers=plan.nproc_per_node)
        files[layout.preflight.name] = json.dumps(expected.to_json(), indent=2) + "\n"
    return Launch(layout, plan, files, code, notes)


def _site_file(job: Path, site: str, *, chosen: bool) -> Path:
    base = Path.cwd() if chosen else job.absolute().parent
    try:
        return locate(site, base=base, own=own_sites())
    except ProfileError as problem:
        raise ProfileError(f"{'--' if chosen else f'{job}: '}{problem}") from None


def _notes(spec: JobSpec, profile: SiteProfile) -> Iterator[str]:
    """Yield what looks like a mistake, though only the nodes can tell."""
    if spec.python is None and spec.container is None and find_spec("torch") is None:
        yield (
            f"{sys.executable} has no torch, and the job would run with it; name the interpreter of"
            " your training environment with `python:`"
        )
    if profile.scheduler == "slurm" and profile.gpu is None and spec.gpus_per_node is not None:
        yield (
            f"gpus_per_node: the profile {profile.name} says nothing of GPUs, so the job asks Slurm"
            " for none; extend it with `gpu: {model: ..., per_node: ...}`, or let"
            " `fsdpq sites detect` write one"
        )
    known = ", ".join(profile.partitions)
    if spec.partition and known and spec.partition not in profile.partitions:
        yield (
            f"partition {spec.partition}: the site {profile.name} knows {known}; limits, constraint"
            " and preemption of this one are unknown"
        )
    for pattern in spec.train.data.text_files if spec.train else ():
        if not glob(pattern, recursive=True):  # noqa: PTH207 (an absolute pattern)
            yield f"train.data.text_files: nothing matches {pattern} here; do the nodes see more?"


def _lint(described: Described, layout: RunLayout) -> Iterator[str]:
    """Yield the errors and warnings of `fsdpq sites lint`; they hold nobody up.

    Of the remarks only the one on memory: a job may die of what it does not ask for.
    """
    found = linting.spec_findings(
        described.spec,
        described.profile,
        file=str(described.job),
        site_file=str(described.site_file),
        run_dir=layout.root,
        around=Surroundings(environ=dict(os.environ)),
    )
    names = {"error": "warning, likely wrong: ", "warn": "warning: ", "info": ""}
    return (
        f"{names[one.level]}{one.text()}"
        for one in found
        if one.level != "info" or one.rule == "memory-unknown"
    )


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
        return act.start(launch.layout, launch.plan)
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
