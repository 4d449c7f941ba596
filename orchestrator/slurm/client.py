"""Run Slurm's commands: the effects. Three lines each: build, run, parse."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import ActionError, ActionUnknownError, QueryError, SchedulerError
from orchestrator.scheduler import Answer, Ids, JobRecord, JobState, no_ids
from orchestrator.slurm import commands, parse

# A controller that is down holds squeue for 18 s and sbatch for 9 s before they give up.
QUERY_TIMEOUT_S = 60.0
ACTION_TIMEOUT_S = 60.0
# Somebody waits for the answer, and can do without.
_LOOK_TIMEOUT_S = 20.0

# Variables that change what a command of Slurm asks for or prints. SQUEUE_STATES=PENDING alone
# makes squeue print nothing, with exit code 0, for a job that runs. SLURM_CONF says where the
# cluster is, so it stays.
_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without what would steer Slurm's commands. Pure."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name.startswith(_PREFIXES) or name == "SCONTROL_ALL")
    }


def run(
    argv: Sequence[str], *, timeout_s: float, error: type[SchedulerError]
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` and return what it printed.

    Bytes that are no UTF-8 are replaced: other people's job names must not stop us.

    Raises:
        SchedulerError: As ``error``; it failed, is missing or gave no answer in time.
    """
    try:
        done = subprocess.run(  # noqa: S603 (an argument list of ours, no shell)
            list(argv),
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=clean_environment(os.environ),
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise error(argv, returncode=None, stderr=f"no answer in {timeout_s:.0f} s") from None
    except OSError as problem:
        text = f"{absent(argv[0], problem)}; is this a login node of a Slurm cluster?"
        raise error(argv, returncode=127, stderr=text) from None
    if done.returncode != 0:
        raise error(argv, returncode=done.returncode, stderr=done.stderr)
    return done


def absent(command: str, problem: OSError) -> str:
    """Return why ``command`` could not be started."""
    missing = isinstance(problem, FileNotFoundError)
    return f"there is no {command} on PATH" if missing else str(problem)


def test_only(script: str) -> str:
    """Return what Slurm says of the job of ``script``: when and where it would start.

    Raises:
        ActionError: It would refuse the job, or gave no answer (without an exit code then).
    """
    done = run(commands.test_only(script), timeout_s=_LOOK_TIMEOUT_S, error=ActionError)
    # sbatch says it on standard error, also where all is well.
    return " ".join((done.stderr or done.stdout).removeprefix("sbatch: ").split())


@dataclass(frozen=True, slots=True)
class SlurmScheduler:
    """The Slurm cluster that this login node belongs to, as the user ``uid`` sees it."""

    uid: int

    def jobs(self, names: Sequence[str], *, ids: Ids = no_ids) -> Answer:
        """Return the records of jobs called ``names``: one squeue and at most one sacct."""
        wanted = frozenset(names)
        queue = run(commands.squeue(self.uid), timeout_s=QUERY_TIMEOUT_S, error=QueryError)
        found = parse.squeue(queue.stdout, names=wanted)
        missing = sorted(ids(found))
        past, silent = _accounted(missing, wanted) if missing else ([], "")
        return Answer(tuple(sorted(found + past, key=_age)), silent)

    def requeue(self, job_id: str) -> None:
        """Start the same id again.

        Raises:
            ActionError: Slurm refused; a new job will have to do.
            ActionUnknownError: No answer; a later look tells whether it was done.
        """
        try:
            run(commands.requeue(job_id), timeout_s=ACTION_TIMEOUT_S, error=ActionError)
        except ActionError as error:
            if error.returncode is None or parse.no_answer(error.stderr):
                raise ActionUnknownError(
                    error.argv, returncode=error.returncode, stderr=error.stderr
                ) from None
            if "Job is pending execution" not in error.stderr:  # somebody was faster: that is fine
                raise

    def start_now(self, job_id: str) -> None:
        """Take back the delay of a requeue."""
        run(commands.start_now(job_id), timeout_s=ACTION_TIMEOUT_S, error=ActionError)

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Have a pending job leave out ``nodes`` and no others; that it does is looked up."""
        argv = commands.exclude(job_id, nodes)
        run(argv, timeout_s=ACTION_TIMEOUT_S, error=ActionError)
        shown = run(commands.show_job(job_id), timeout_s=QUERY_TIMEOUT_S, error=ActionError)
        if nodes and not parse.has_exclusions(shown.stdout):
            raise ActionError(argv, returncode=0, stderr="accepted, and the job excludes no node")

    def node_count(self, partition: str | None) -> int | None:
        """Return how many nodes of the partition can run jobs."""
        argv = commands.node_count(partition)
        answer = run(argv, timeout_s=QUERY_TIMEOUT_S, error=QueryError)
        return parse.node_count(answer.stdout, any_partition=partition is not None)

    def cancel(self, job_id: str) -> None:
        """End the job."""
        _unless_gone(commands.cancel(job_id))

    def notify(self, job_id: str, *, signal: str) -> None:
        """Send the notice signal to the job's steps, and to its shell if there is no step yet."""
        _unless_gone(commands.notify_batch(job_id, signal))
        _unless_gone(commands.notify(job_id, signal))


def _unless_gone(argv: Sequence[str]) -> None:
    """Run ``argv``; that the job has ended meanwhile is what was wanted."""
    try:
        run(argv, timeout_s=ACTION_TIMEOUT_S, error=ActionError)
    except ActionError as error:
        gone = ("Invalid job id specified", "already completing or completed")
        if not any(words in error.stderr for words in gone):
            raise


def _accounted(ids: Sequence[str], names: frozenset[str]) -> tuple[list[JobRecord], str]:
    """Return accounting's records, and why it is silent if it is.

    A site without accounting is not silent: what the queue has forgotten is gone for good.
    """
    try:
        answer = run(commands.sacct(ids), timeout_s=QUERY_TIMEOUT_S, error=QueryError)
    except QueryError as error:
        absent = "accounting storage is disabled" in error.stderr.lower()
        return [], "" if absent else str(error)
    return _newest(parse.sacct(answer.stdout, names=names)), ""


def _newest(records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the newest record of each id; a requeued job has one for each start."""
    found: dict[str, JobRecord] = {}
    for record in sorted(records, key=lambda r: (r.submit or 0.0, r.start or 0.0)):
        found[record.job_id] = record
    return list(found.values())


def _age(record: JobRecord) -> tuple[bool, bool, bool, float]:
    """Sort key: what runs, what waits behind it, what ended; each with the newest first."""
    newest = -(record.start or record.submit or 0.0)
    waits = record.state is JobState.PENDING
    return (not record.in_queue, record.state.ended, waits, newest)
