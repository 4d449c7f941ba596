"""A small process that outlives this one and cleans up after it, even after kill -9.

It waits at a pipe whose other end this process alone holds. The kernel closes that end however this
process dies; without the word that all is well the guard then runs its command.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

# What was on its way to Slurm when we died has arrived after the first pause. The later tries are
# for a controller that does not answer.
_SCRIPT = """
trap '' HUP INT TERM PIPE
read -r word
[ "$word" = well ] && exit 0
"$@"
sleep 5
for pause in 30 120 600 0; do
  "$@" && exit 0
  sleep "$pause"
done
"""
_ENDS_S = 5.0


class Guard:
    """The guard of one piece of work."""

    def __init__(self, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process

    def dismiss(self) -> None:
        """Say that nothing is left to clean up."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError):
            self._process.stdin.write(b"well\n")
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_S)
        self._process = None

    def leave(self) -> None:
        """Let it do its work now, unless it was dismissed."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


@contextmanager
def unless_dismissed(argv: Sequence[str], *, env: Mapping[str, str]) -> Iterator[Guard]:
    """Have ``argv`` run once this process is dead, or in here no longer; see `Guard.dismiss`.

    It runs without a terminal, in a session of its own, in this process's folder. Where no process
    can be started there is no guard.

    Args:
        argv: What to run; it may run more than once.
        env: Its whole environment.
    """
    guard = Guard(_start(argv, env))
    try:
        yield guard
    finally:
        guard.leave()


def _start(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(  # noqa: S603 (words are arguments of the script, not part of it)
            ["/bin/sh", "-c", _SCRIPT, "fsdpq-guard", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            start_new_session=True,
        )
    except OSError:
        return None
