"""Hashes this rank's share of the newest checkpoint while the script still imports torch.

A start waits for its imports for ten seconds and then for the disk to verify a checkpoint; here it
waits for both at once. What is found is a hint: it counts for a file that has not changed since,
and whatever is missing is hashed when it is asked for.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.checkpoint import newest_complete, read_manifest
from orchestrator.checkpoint.hashing import Hashed, parse, sha256_of
from orchestrator.checkpoint.shares import share_of
from orchestrator.errors import CheckpointError
from orchestrator.runtime.environment import Environment


class Ahead:
    """A process that hashes, and what it has found."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path()
        self._known: dict[Path, Hashed] = {}

    def begin(self, env: Environment) -> None:
        """Begin with the checkpoint that an attempt would choose now; it never raises."""
        with contextlib.suppress(OSError, CheckpointError):
            found = newest_complete(env.checkpoints)
            if found is None or self._process is not None:
                return
            files = read_manifest(found.path).files
            names = share_of(files, rank=env.rank, world_size=env.world_size)
            self._folder = found.path
            program = [sys.executable, "-m", "orchestrator.checkpoint.hashing"]
            self._process = subprocess.Popen(  # noqa: S603 (this Python, no shell)
                [*program, str(os.getpid()), str(found.path), *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def wait(self) -> None:
        """Wait until the process is done, and keep what it has found."""
        process, self._process = self._process, None
        if process is None:
            return
        said = [parse(line) for line in process.communicate()[0].splitlines()]
        self._known = {self._folder / one.name: one for one in said if one is not None}

    def give_up(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of ``path`` in hexadecimal digits.

        Raises:
            OSError: It cannot be read.
        """
        known = self._known.get(path)
        return known.sha256 if known is not None and known.is_of(path) else sha256_of(path)
