"""An attempt that has been replaced must not touch what its successor works with."""

from orchestrator.errors import RunError
from orchestrator.runtime.environment import Environment, attempt_numbers


class SupersededError(RunError):
    """A newer attempt of this run has started: this one may neither publish nor delete."""


def check_fence(env: Environment) -> None:
    """Return if this is still the newest attempt of its run.

    Raises:
        SupersededError: It is not, or the folder of the attempts can no longer be listed.
    """
    try:
        newest = max(attempt_numbers(env.run), default=env.attempt)
    except OSError as problem:
        raise SupersededError(f"{env.run.attempts}: cannot be listed: {problem}") from None
    if newest > env.attempt:
        raise SupersededError(
            f"attempt {newest} of run {env.run.name} has started; attempt {env.attempt} stops"
            " here and leaves its checkpoints alone"
        )
