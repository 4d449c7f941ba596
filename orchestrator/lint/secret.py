"""Rules on secrets: none may stand in a file that scripts, logs and run directories keep. Pure."""

from collections.abc import Iterator

from orchestrator.lint.case import Case
from orchestrator.lint.redact import is_secret
from orchestrator.lint.rule import Hit, rule


@rule(
    "error",
    why="this looks like a secret; the script, the run directory and `scontrol show job` would show"
    " it",
    do="revoke it, and export the new one in the shell that runs `fsdpq submit`",
    source="fsdpq: secrets never stand in scripts or logs",
)
def secret_in_the_open(case: Case) -> Iterator[Hit]:
    """A token or password as the value of a variable, an option or an argument."""
    yield from (Hit(at=one) for one in case.settings if is_secret(one.value))
    job = case.job
    if job is not None:
        for number, text in enumerate(job.spec.args):
            if is_secret(text):
                yield Hit(at=job.place(f"args.{number}", text))
        if job.spec.comment and is_secret(job.spec.comment):
            yield Hit(at=job.place("comment", job.spec.comment))
