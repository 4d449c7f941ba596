"""Takes a copy of the files that a rank writes in a save. A problem ends the copy alone."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.trainer.direct import NewFile, open_new

# Until it is whole. After that only the hash in the manifest says that it still is.
_PART = ".part"


class StepCopy:
    """Takes the files of one save of this rank. Used by several threads."""

    def __init__(self, folder: int | None = None, problem: str = "") -> None:
        self.problem = problem
        self._folder = folder

    def file(self, name: str, *, direct: bool = False) -> "FileCopy":
        """Return what takes a copy of the file ``name``; ``direct`` is past the page cache."""
        return FileCopy(self, self._folder, name, direct=direct)

    def close(self) -> str:
        """Let go of the folder; return what went wrong, empty if nothing did."""
        if self._folder is not None:
            os.close(self._folder)
        self._folder = None
        return self.problem


class FileCopy:
    """Takes what is written to one file. The first problem of a save ends all its copies."""

    def __init__(self, step: StepCopy, folder: int | None, name: str, *, direct: bool) -> None:
        self._step, self._folder, self._name = step, folder, name
        self._file: NewFile | None = None
        if folder is None or step.problem:
            return
        with self._noting():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name + _PART, dir_fd=folder)
            # The folder that was looked at, wherever its name leads by now.
            self._file = open_new(Path(f"/proc/self/fd/{folder}", name + _PART), direct=direct)

    def write(self, part: memoryview) -> None:
        """Write all of ``part``, unless something went wrong before."""
        if self._file is None:
            return
        if self._step.problem:
            self.drop()
            return
        with self._noting():
            self._file.write(part)

    def finish(self) -> None:
        """Give the file its name: it is whole."""
        if self._file is None:
            return
        with self._noting():
            self._file.flush()
            self._file.close()
            os.rename(
                self._name + _PART, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder
            )
            self._file = None

    def drop(self) -> None:
        """Remove what is there of it."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name + _PART, dir_fd=self._folder)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self._step.problem = self._step.problem or problem.strerror or str(problem)
            self.drop()
