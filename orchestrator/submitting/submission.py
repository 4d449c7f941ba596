"""Submit a run's script: the only module that imports submitit.

submitit submits and no more: it owns its folder, runs sbatch and keeps the job id. No function is
pickled and none of submitit's code runs on the nodes, where its signal handler would requeue the
job in the middle of a save.
"""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor

from orchestrator.errors import SubmitError, SubmitUnknownError
from orchestrator.rundir.layout import RunLayout
from orchestrator.slurm import commands, parse
from orchestrator.slurm.client import clean_environment

SUBMIT_TIMEOUT_S = 120
# sbatch gives up on a slow controller, but the controller may have taken the job all the same.
_MAYBE = ("Socket timed out", "Zero Bytes were transmitted", "Connection reset", "Broken pipe")
# coreutils' timeout, or a sbatch that was killed (with a negative code by our own count).
_CUT_OFF = (124, 137, 143)


class ScriptExecutor(SlurmExecutor):
    """A SlurmExecutor that submits a script that is there already."""

    def __init__(self, layout: RunLayout, options: Sequence[str]) -> None:
        super().__init__(layout.submitit)
        self._options = options
        self._script = layout.script
        self.accepted: str | None = None

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script.read_text(encoding="utf-8")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["timeout", str(SUBMIT_TIMEOUT_S), *self._argv(submission_file_path)]

    def _argv(self, path: Path) -> list[str]:
        return commands.sbatch(str(path), options=self._options)

    # Static in submitit, which calls it on the instance: this one keeps the id.
    def _get_job_id_from_submission_command(  # type: ignore[override]
        self, string: bytes | str
    ) -> str:
        self.accepted = parse.job_id(string if isinstance(string, str) else string.decode())
        return self.accepted


def submit_slurm(layout: RunLayout, *, options: Sequence[str] = ()) -> str:
    """Submit the run's script to Slurm and return the job id.

    Args:
        layout: The run.
        options: Options of sbatch that go before those in the script.

    Raises:
        SubmitError: Slurm refused it; no job exists.
        SubmitUnknownError: No answer; a job may exist.
    """
    argv = commands.sbatch(str(layout.script), options=options)
    executor = _executor(layout, argv, options)
    try:
        # submitit prints what sbatch said besides raising it.
        with _clean_environment(), contextlib.redirect_stderr(io.StringIO()):
            return str(executor._submit_command("").job_id)
    except FailedJobError as problem:
        cause = problem.__cause__
        code = cause.returncode if isinstance(cause, subprocess.CalledProcessError) else 1
        raise _refused(argv, code, str(problem)) from None
    except (FailedSubmissionError, ValueError) as problem:  # accepted, but the id does not read
        raise SubmitUnknownError(argv, returncode=0, stderr=str(problem)) from None
    except OSError as problem:
        if executor.accepted is not None:  # the job is there, only submitit's notes on it are not
            return executor.accepted
        raise SubmitError(argv, returncode=127, stderr=str(problem)) from None


def _executor(layout: RunLayout, argv: list[str], options: Sequence[str]) -> ScriptExecutor:
    try:
        return ScriptExecutor(layout, options)
    except (RuntimeError, OSError) as problem:  # no srun here, a folder that cannot be written
        raise SubmitError(argv, returncode=127, stderr=str(problem)) from None


def _refused(argv: list[str], code: int, stderr: str) -> SubmitError | SubmitUnknownError:
    if code < 0 or code in _CUT_OFF or any(words in stderr for words in _MAYBE):
        return SubmitUnknownError(argv, returncode=code, stderr=stderr)
    return SubmitError(argv, returncode=code, stderr=stderr)


@contextlib.contextmanager
def _clean_environment() -> Iterator[None]:
    """Take away variables that override #SBATCH lines; jobs get the rest of the environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(clean_environment(before))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def submit_local(layout: RunLayout) -> str:
    """Start the run's script on this machine and return the id of its process.

    submitit's LocalExecutor keeps its controller in the caller's process group and holds its
    standard output, so a process of its own, in a session of its own, makes the call.

    Raises:
        SubmitError: It could not be started.
    """
    answer = layout.submitit / "job-id"
    answer.unlink(missing_ok=True)
    # -P: a folder called orchestrator in the current directory is not ours.
    argv = [sys.executable, "-P", "-m", "orchestrator.local.start", str(layout.root)]
    with layout.output.open("ab") as log:
        done = subprocess.run(  # noqa: S603 (an argument list of ours, no shell)
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=clean_environment(os.environ),
        )
    if done.returncode != 0 or not answer.is_file():
        said = layout.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SubmitError(argv, returncode=done.returncode, stderr=" ".join(said[-1:]))
    return answer.read_text(encoding="utf-8").strip()
