"""The rank's end of the process that writes its files (`writing`)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path

from orchestrator.errors import CheckpointError
from orchestrator.trainer.host_memory import HostMemory, Region
from orchestrator.trainer.local_copy import LocalCopy
from orchestrator.trainer.shards import Written
from orchestrator.trainer.writing import READY, Answer, Order

# The import paths travel along: this process may have changed directory since it found its modules.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1));"
    " from orchestrator.trainer.writing import main; main()"
)
_END_S = 5.0


class Writer:
    """A process that writes what lies in ``memory``, ``threads`` files at once."""

    def __init__(self, memory: HostMemory, *, threads: int, local: LocalCopy | None = None) -> None:
        self._local = local
        self._rank, theirs = Pipe()
        words = [str(theirs.fileno()), str(memory.file), str(memory.nbytes), str(threads)]
        self.process = subprocess.Popen(  # noqa: S603 - this Python, and numbers of ours
            [sys.executable, "-c", _START, json.dumps(sys.path), *words],
            # It must not open a GPU, which costs memory there, nor take a rank's part in anything.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            pass_fds=(theirs.fileno(), memory.file),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once it has imported what it needs.

        Raises:
            CheckpointError: It died, or did not come up in time.
        """
        if self._hear(timeout_s) != READY:
            raise CheckpointError("the writer process does not speak as expected")

    def write(
        self,
        folder: Path,
        files: Sequence[tuple[str, Sequence[Region | bytes]]],
        *,
        timeout_s: float,
    ) -> list[Written]:
        """Return what was written into ``folder``.

        Raises:
            CheckpointError: The disk refused, the process died, or it took too long; then it is
                ended, so that it writes no more.
        """
        try:
            self._rank.send(Order(folder, files, self._local))
        except OSError:
            raise CheckpointError(self._last_word()) from None
        answer = self._hear(timeout_s)
        assert isinstance(answer, Answer)
        if answer.problem:
            raise CheckpointError(answer.problem)
        return list(answer.written)

    def end(self) -> None:
        """End the process at once, whatever it does. It may be called from another thread."""
        self.process.kill()

    def close(self) -> None:
        """Let the process end by itself, or end it."""
        self._rank.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.end()
            _reap(self.process)

    def _hear(self, timeout_s: float) -> object:
        try:
            if self._rank.poll(timeout_s):
                return self._rank.recv()
        except (EOFError, OSError):
            raise CheckpointError(self._last_word()) from None
        self.end()
        _reap(self.process)
        raise CheckpointError(f"the writer process did not answer within {timeout_s:g} s")

    def _last_word(self) -> str:
        code = _reap(self.process)
        if code is not None and code < 0:
            return f"the writer process was ended by {signal.Signals(-code).name}"
        return f"the writer process ended with code {code}"


def _reap(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code, None for a process that a hung file system holds."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return None
