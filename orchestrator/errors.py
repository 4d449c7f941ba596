"""Every error that fsdpq raises on purpose.

FsdpqError
  InputError            something the user wrote
    SpecError           the job file
    ProfileError        the site profile
  TemplateError         a template asks for a value that the plan does not have
  RunError              the run directory: missing, in the way, unreadable
  CheckpointError       no usable checkpoint, or one that cannot be published
    UnreadError         one that could not be read, and may be sound
  SchedulerError        a scheduler's command failed; argv, exit code and stderr are kept
    QueryError          the scheduler gave no answer: nothing is known about any job
    SubmitError         the scheduler refused the job: nothing was submitted
    SubmitUnknownError  no answer to a submission: the job may exist all the same
    ActionError         requeue, cancel, update or signal was refused
    ActionUnknownError  no answer to one of these: it may have been done all the same

Beside what raises them, as RunErrors: runtime's VoteError and SupersededError.
"""

from collections.abc import Sequence


class FsdpqError(Exception):
    """Base of all errors that are shown to the user as one message, without a traceback."""


class InputError(FsdpqError):
    """Something the user wrote cannot be used."""


class SpecError(InputError):
    """The job file cannot be used."""


class ProfileError(InputError):
    """The site profile cannot be used."""


class TemplateError(FsdpqError):
    """A template and the plan do not fit together."""


class RunError(FsdpqError):
    """The run directory is missing, in the way or unreadable."""


class CheckpointError(FsdpqError):
    """There is no usable checkpoint, or one could not be published."""


class UnreadError(CheckpointError):
    """A checkpoint could not be read here and now, and may be sound."""


class SchedulerError(FsdpqError):
    """A scheduler's command failed.

    Attributes:
        argv: The command, as it was run.
        returncode: Its exit code; None where it was ended by our own time-out.
        stderr: What it said, verbatim.
    """

    def __init__(self, argv: Sequence[str], *, returncode: int | None, stderr: str) -> None:
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stderr = stderr.strip()
        ended = "gave no answer in time" if returncode is None else f"exited with {returncode}"
        said = " ".join(self.stderr.split()) or "(no message)"
        super().__init__(f"{' '.join(argv)} {ended}: {said}")


class QueryError(SchedulerError):
    """The scheduler gave no answer. Nothing may be concluded about any job."""


class SubmitError(SchedulerError):
    """The scheduler refused the job; nothing was submitted."""


class SubmitUnknownError(SchedulerError):
    """The scheduler did not answer a submission; the job may exist all the same."""


class ActionError(SchedulerError):
    """The scheduler refused to requeue, cancel, update or signal a job."""


class ActionUnknownError(SchedulerError):
    """The scheduler did not answer; what was asked of it may have been done all the same."""
