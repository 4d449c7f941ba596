"""Run a query that may take long or say a lot: heard in pieces, and given up if it is too much."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from orchestrator.errors import QueryError
from orchestrator.slurm.client import absent, clean_environment

# A word each so often, so that nobody takes a slow controller for a hang of ours.
_TELL_S = 5.0
_PIECE = 1 << 16
# `scontrol show node` of 20 000 nodes has about 30 MiB.
MOST_BYTES = 64 << 20


def answer(argv: Sequence[str], *, timeout_s: float, waiting: Callable[[float], None]) -> str:
    """Return what ``argv`` prints.

    Args:
        argv: The query.
        timeout_s: How long it may take, in seconds.
        waiting: Is told every few seconds how long this has taken, in seconds.

    Raises:
        QueryError: It failed, is missing, gave no answer in time or printed more than MOST_BYTES.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 (an argument list of ours, no shell)
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(os.environ),
            start_new_session=True,  # so that all of it can be ended
        )
    except OSError as problem:
        text = f"{absent(argv[0], problem)}; is this a login node of a Slurm cluster?"
        raise QueryError(argv, returncode=127, stderr=text) from None
    with process:
        try:
            heard = _Heard(argv, timeout_s=timeout_s, waiting=waiting)
            heard.listen(process)
        finally:
            _end(process)
    if process.returncode != 0:
        raise QueryError(argv, returncode=process.returncode, stderr=_text(heard.stderr))
    return _text(heard.stdout)


def _text(said: bytearray) -> str:
    return said.decode("utf-8", errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class _Heard:
    """What a query has said so far."""

    def __init__(
        self, argv: Sequence[str], *, timeout_s: float, waiting: Callable[[float], None]
    ) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._argv, self._timeout_s, self._waiting = argv, timeout_s, waiting
        self._began = self._told = time.monotonic()

    def listen(self, process: subprocess.Popen[bytes]) -> None:
        """Take all that ``process`` says, until it has ended."""
        with selectors.DefaultSelector() as open_pipes:
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                open_pipes.register(pipe, selectors.EVENT_READ, pipe is process.stdout)
            while open_pipes.get_map():
                for key, _ in open_pipes.select(self._pause_s()):
                    if not self._take(key.fileobj, key.data):  # type: ignore[arg-type]
                        open_pipes.unregister(key.fileobj)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._pause_s())

    def _take(self, pipe: IO[bytes], is_answer: bool) -> bool:
        """Take a piece; return whether there may be more."""
        piece = os.read(pipe.fileno(), _PIECE)
        if is_answer:
            self.stdout += piece
        elif len(self.stderr) < _PIECE:
            self.stderr += piece
        if len(self.stdout) > MOST_BYTES:
            why = f"its answer is longer than {MOST_BYTES >> 20} MiB, so it was not read"
            raise QueryError(self._argv, returncode=0, stderr=why)
        return bool(piece)

    def _pause_s(self) -> float:
        """Return how long to wait for more, in seconds, and tell how long it has been."""
        now = time.monotonic()
        left_s = self._began + self._timeout_s - now
        if left_s <= 0:
            why = f"no answer in {self._timeout_s:.0f} s"
            raise QueryError(self._argv, returncode=None, stderr=why)
        if now - self._told >= _TELL_S:
            self._told = now
            self._waiting(now - self._began)
        return min(left_s, self._told + _TELL_S - now)
