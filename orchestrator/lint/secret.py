"""Rules on secrets: none may stand in a file that scripts, logs and run directories keep. Pure."""

from collections.abc import Iterator, Mapping

from orchestrator.lint.case import Case
from orchestrator.lint.rule import Hit, rule
from orchestrator.redact import is_secret


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
        for key, text in _texts(job.spec.model_dump(exclude={"env"}), ""):
            if is_secret(text):
                yield Hit(at=job.place(key, text))


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a job file, with its dotted key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{key}.{number}")
