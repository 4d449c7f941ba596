"""`fsdpq watch` as a small Slurm job that renews itself.

For sites where nothing may run for long on a login node. There is one such job for a directory of
runs: its name says which. While one runs, the next one waits behind it with
`--dependency=singleton`, and starts whatever ends the first. Submitted with sbatch and without
submitit, which keeps a folder for each job and would know nothing of those that the job submits
itself.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RunError, SpecError, SubmitError
from orchestrator.keys.fields import (
    SbatchValue,
    Strict,
    TimeLimit,
    no_control,
    slurm_time,
    validate,
)
from orchestrator.launchplan import script
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.runstore import store
from orchestrator.scheduler import JobRecord, JobState, Scheduler
from orchestrator.slurm import client, commands, parse

# Hidden, so that nobody takes it for a run.
FOLDER = ".watch"
SCRIPT = "watch.sbatch"
STOP = "stop"
LOG = "watch.log"
SUBMIT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchJob:
    """What the script of a watch job is rendered from.

    Attributes:
        name: Unique to the directory of the runs.
        folder: Where its script, its log and the mark that stops it are.
        command: `fsdpq watch ...` as an argument list.
        directives: Options of sbatch as (name, value).
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    directives: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The script."""
        return script.fill("watch.sbatch.j2", job=self)


class Options(Strict):
    """What a user may say of the job, spelled as sbatch spells it."""

    time: TimeLimit = 86400
    partition: SbatchValue | None = None
    account: SbatchValue | None = None


def options(given: Mapping[str, str], plans: Sequence[LaunchPlan]) -> Options:
    """Return the options that were ``given``; the account is else that of the runs. Pure.

    Raises:
        SpecError: One of them cannot be used.
        RunError: None of the runs is on Slurm.
    """
    if plans and all(plan.scheduler == "local" for plan in plans):
        raise RunError("these runs are local; let `fsdpq watch` run in tmux or from cron")
    accounts = {dict(plan.directives).get("account") for plan in plans if plan.directives}
    only = accounts.pop() if len(accounts) == 1 else None
    theirs = {"account": only} if only else {}
    where = Path("fsdpq watch --as-job")
    return validate(Options, {**theirs, **given}, where=where, error=SpecError)


def describe(
    runs: Path,
    names: Sequence[str] = (),
    *,
    options: Options,
    every_s: float = 15.0,
    python: str = sys.executable,
) -> WatchJob:
    """Return the watch job for the runs called ``names`` in ``runs``, all of them if empty. Pure.

    Raises:
        SpecError: The directory has a name that cannot be given to Slurm.
    """
    folder = runs / FOLDER
    _check(folder)
    name = f"fsdpq-watch-{hashlib.sha256(str(runs).encode()).hexdigest()[:8]}"
    directives: list[tuple[str, str | None]] = [
        ("job-name", name),
        ("nodes", "1"),
        ("ntasks", "1"),
        ("cpus-per-task", "1"),
        ("mem", "1G"),
        ("time", slurm_time(options.time)),
        ("partition", options.partition),
        ("account", options.account),
        # Not put back by Slurm, which takes two minutes for it: the one that waits goes on.
        ("no-requeue", ""),
        ("dependency", "singleton"),
        ("open-mode", "append"),
        ("output", str(folder / LOG).replace("%", "%%")),
    ]
    watch = ("-m", "orchestrator", "watch", "--runs", str(runs), "--every", f"{every_s:g}")
    return WatchJob(
        name=name,
        folder=folder,
        # -P: a folder called orchestrator where it was submitted is not fsdpq's.
        command=(python, "-P", *watch, *names),
        directives=tuple((key, value) for key, value in directives if value is not None),
    )


def _check(folder: Path) -> None:
    """Refuse what sbatch would read as something else in --output."""
    try:
        no_control(str(folder))
    except ValueError as problem:
        raise SpecError(f"--runs: {str(folder)!r} {problem}, or choose another one") from None
    if "\\" in str(folder):
        raise SpecError(f"--runs: {str(folder)!r} contains '\\', which Slurm reads as a pattern")


def start(job: WatchJob, scheduler: Scheduler) -> str:
    """Submit the watch job unless there is one, and return a sentence on it.

    Two that do this at once do no harm: the second job waits behind the first and is its next.

    Raises:
        RunError: There is one that watches something else, or its files cannot be written.
        SchedulerError: Slurm does not answer or refuses.
    """
    script_file = job.folder / SCRIPT
    if live := _live(job.name, scheduler):
        if not script_file.is_file() or script_file.read_text(encoding="utf-8") != job.text:
            why = f"job {live[0].job_id} watches already, with other runs or options"
            raise RunError(f"{why}; end it first: `fsdpq watch --stop-job`")
        return f"job {live[0].job_id} watches already ({live[0].state.lower()}); {_log(job)}"
    job.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    store.write_files(job.folder, {SCRIPT: job.text})
    (job.folder / STOP).unlink(missing_ok=True)
    argv = commands.sbatch(str(script_file))
    answer = client.run(argv, timeout_s=SUBMIT_TIMEOUT_S, error=SubmitError)
    try:
        return f"job {parse.job_id(answer.stdout)} watches; {_log(job)}"
    except ValueError as problem:
        raise SubmitError(argv, returncode=0, stderr=str(problem)) from None


def _log(job: WatchJob) -> str:
    return f"its log is {job.folder / LOG}; `fsdpq watch --stop-job` ends it"


def stop(job: WatchJob, scheduler: Scheduler) -> str:
    """End the watch job and the one that waits behind it, and return a sentence on it.

    Raises:
        RunError: The mark cannot be written.
        SchedulerError: Slurm does not answer; the mark stands, and no further one gets far.
    """
    # The mark first: one that starts or is submitted in between ends by itself.
    if job.folder.is_dir():
        store.write_files(job.folder, {STOP: ""})
    live = _live(job.name, scheduler)
    # What waits goes first: the end of the one that runs would start it.
    for record in sorted(live, key=lambda record: record.state is not JobState.PENDING):
        scheduler.cancel(record.job_id)
    ended = ", ".join(record.job_id for record in live)
    return f"ended job {ended}" if live else "no job watches these runs"


def _live(name: str, scheduler: Scheduler) -> list[JobRecord]:
    """Return the live jobs called ``name``; the one that runs comes first."""
    records = scheduler.jobs([name]).records
    return [job for job in records if job.live]


def absolute(runs: Path) -> Path:
    """Return ``runs`` as the nodes know it: links are left, they may lead elsewhere there."""
    return Path(os.path.abspath(runs))  # noqa: PTH100
