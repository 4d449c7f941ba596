"""Hashes this rank's share of the newest checkpoint while the script still imports torch.

A start waits for its imports for ten seconds and then for the disk to verify a checkpoint; here it
waits for both at once. What is found is a hint: it counts for a file that has not changed since,
and whatever is missing is hashed when it is asked for.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from orchestrator.checkpoint import (
    Checkpoint,
    FileEntry,
    Manifest,
    hashing,
    newest_complete,
    read_manifest,
)
from orchestrator.checkpoint.hashing import State, parse, state_of
from orchestrator.checkpoint.shares import share_of
from orchestrator.errors import CheckpointError
from orchestrator.runtime.environment import Environment

# The open copies of files of a checkpoint that this node has.
Copies = Callable[[Checkpoint, Mapping[str, FileEntry]], Mapping[str, IO[bytes]]]


def no_copies(_: Checkpoint, __: Mapping[str, FileEntry]) -> Mapping[str, IO[bytes]]:
    """Return nothing."""
    return {}


class Ahead:
    """A process that hashes, and what it has found."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._known: dict[State, str] = {}

    def begin(self, env: Environment, copies: Copies = no_copies) -> None:
        """Begin with the checkpoint that an attempt would choose now; it never raises.

        Where this node has ``copies`` of files, those are hashed instead.
        """
        with contextlib.suppress(OSError, CheckpointError):
            found = newest_complete(env.checkpoints)
            if found is None or self._process is not None:
                return
            share = _share(read_manifest(found.path), env)
            with contextlib.ExitStack() as stack:
                held = copies(found, share)
                for file in held.values():
                    stack.enter_context(file)
                self._start([found.path / name for name in share if name not in held], held)

    def _start(self, paths: Sequence[Path], held: Mapping[str, IO[bytes]]) -> None:
        numbers = [file.fileno() for file in held.values()]
        files = [*map(str, paths), *(f"/proc/self/fd/{number}" for number in numbers)]
        # By its path and with -P: nothing of the working directory is imported.
        program = [sys.executable, "-P", hashing.__file__, str(os.getpid())]
        self._process = subprocess.Popen(  # noqa: S603 (this Python, no shell)
            [*program, *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=numbers,
            text=True,
        )

    def wait(self) -> None:
        """Wait until the process is done, and keep what it has found."""
        process, self._process = self._process, None
        if process is None:
            return
        said = [parse(line) for line in process.communicate()[0].splitlines()]
        self._known = {one.state: one.sha256 for one in said if one is not None}

    def give_up(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def known(self, path: Path) -> str | None:
        """Return the SHA-256 of ``path`` in hexadecimal digits, if it was hashed ahead.

        Raises:
            OSError: It cannot be looked at.
        """
        return self._known.get(state_of(path.stat()))

    def known_of(self, file: IO[bytes]) -> str | None:
        """Return the SHA-256 of an open file in hexadecimal digits, if it was hashed ahead."""
        return self._known.get(state_of(os.fstat(file.fileno())))


def _share(manifest: Manifest, env: Environment) -> dict[str, FileEntry]:
    names = share_of(manifest.files, rank=env.rank, world_size=env.world_size)
    return {name: manifest.files[name] for name in names}
