"""Copies of checkpoint files on a node's own disk or in its memory. No truth lies here.

    <local_copy>/fsdpq-1000-llama-8b-3f2a9c1b5d7e/   0700; one a user and run, from the run's path
      run                                            the run directory; who cleans up looks there
      step-40.3/__0_0.distcp                         step 40, as attempt 3 wrote it
      step-40.3/__0_1.distcp.part                    not whole, or not any more

A copy is only ever read where it has the size and the hash that the published checkpoint's manifest
gives. So nothing here is made durable, and whatever is stale, cut off or spoilt is passed over.
What goes wrong here is told, and ends no save and no load.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO

from orchestrator.checkpoint import Checkpoint, FileEntry
from orchestrator.checkpoint.names import Scratch, parse_scratch
from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime.environment import Environment
from orchestrator.spec.train import check_local_copy
from orchestrator.trainer.own_folder import (
    make,
    names_in,
    new_file,
    open_file,
    outer_folder,
    own_folder,
    remove,
    size_of,
)
from orchestrator.trainer.room import lack_of_room
from orchestrator.trainer.step_copy import StepCopy

_RUN = "run"
_NAME = re.compile(r"step-(?P<step>0|[1-9][0-9]*)\.(?P<attempt>0|[1-9][0-9]*)", re.ASCII)


def folder_name(run: Path, *, user: int) -> str:
    """Return what the folder of the run directory ``run`` is called. Pure.

    >>> folder_name(Path("/scratch/runs/llama 8b"), user=1000)
    'fsdpq-1000-llama-8b-946e0a3126c5'
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name)[:64]
    digest = blake2b(os.fsencode(run), digest_size=6).hexdigest()
    return f"fsdpq-{user}-{plain}-{digest}"


def copy_name(step: int, attempt: int) -> str:
    """Return the name of the copy of ``step`` that ``attempt`` wrote. Pure."""
    return f"step-{step}.{attempt}"


def parse_copy(name: str) -> tuple[int, int] | None:
    """Return (step, attempt) of a copy called ``name``, None for any other name. Pure."""
    found = _NAME.fullmatch(name)
    return (int(found["step"]), int(found["attempt"])) if found else None


def outdated(names: list[str], *, step: int, attempt: int) -> list[str]:
    """Return which copies may go once ``attempt`` has published ``step``. Pure.

    Only that one stays, and what the attempt has begun to write since. Where the attempt could not
    copy that step, or has only resumed from it, all of them stay.
    """
    if copy_name(step, attempt) not in names:
        return []
    found = [(name, parsed) for name in names if (parsed := parse_copy(name)) is not None]
    return [
        name
        for name, (of, by) in found
        if (of, by) != (step, attempt) and not (by == attempt and of > step)
    ]


def newest_first(names: list[str], *, step: int) -> list[str]:
    """Return the copies of ``step``, that of the newest attempt first. Pure."""
    found = [(parsed, name) for name in names if (parsed := parse_copy(name)) is not None]
    return [name for (of, _), name in sorted(found, reverse=True) if of == step]


def local_copy_of(directory: str | None, env: Environment) -> "LocalCopy | None":
    """Return where the run of ``env`` keeps copies; None if the job file asks for none.

    Raises:
        SpecError: It is the run directory, or lies in it.
    """
    if directory is None:
        return None
    run = env.run.root
    check_local_copy(directory, run)
    check_local_copy(os.path.realpath(directory), Path(os.path.realpath(run)))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return LocalCopy(Path(directory), run, ranks=ranks)


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """Where a run keeps copies on this node.

    Attributes:
        directory: As the job file names it.
        run: The run directory.
        ranks: How many ranks of this node write at once.
    """

    directory: Path
    run: Path
    ranks: int = 1

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return folder_name(self.run, user=os.getuid())

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Give a descriptor of the run's folder.

        Raises:
            OSError: It is not there, or is not this user's alone.
        """
        with outer_folder(self.directory) as outer, own_folder(self.name, within=outer) as folder:
            yield folder

    # -- writing -------------------------------------------------------------------------------

    def begin(self, draft: str, *, nbytes: int) -> StepCopy:
        """Return what takes a copy of the files of this rank; it never raises.

        Args:
            draft: Name of the directory of the save, `step-N.tmp-<attempt>`.
            nbytes: How large they are together.
        """
        found = parse_scratch(draft)
        if found is None:
            return StepCopy(problem=f"{draft!r} is no name of a save")
        try:
            self._make()
            return StepCopy(self._prepare(found, nbytes))
        except OSError as problem:
            return StepCopy(problem=problem.strerror or str(problem))

    def _make(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with outer_folder(self.directory) as outer:
            if make(self.name, within=outer):
                with (
                    own_folder(self.name, within=outer) as folder,
                    new_file(_RUN, within=folder) as file,
                ):
                    file.write(os.fsencode(self.run))

    def _prepare(self, save: Scratch, nbytes: int) -> int:
        name = copy_name(save.step, save.attempt)
        with self.opened() as folder:
            make(name, within=folder)
            with own_folder(name, within=folder) as made:
                if lack_of_room(made, nbytes, ranks=self.ranks):
                    older = [other for other in names_in(folder) if parse_copy(other)]
                    remove([other for other in older if other != name], within=folder)
                if why := lack_of_room(made, nbytes, ranks=self.ranks):
                    raise OSError(why)
                return os.dup(made)

    # -- removing ------------------------------------------------------------------------------

    def thin_out(self, *, step: int, attempt: int) -> None:
        """Remove what nobody needs once ``step`` is published, and what ended runs have left."""
        with contextlib.suppress(OSError), self.opened() as folder:
            remove(outdated(names_in(folder), step=step, attempt=attempt), within=folder)
        start = f"fsdpq-{os.getuid()}-"
        with contextlib.suppress(OSError), outer_folder(self.directory) as outer:
            others = [n for n in names_in(outer) if n.startswith(start) and n != self.name]
            remove([name for name in others if _is_over(name, outer)], within=outer)

    def remove(self) -> None:
        """Remove the run's folder: memory must not be held for a run that has ended."""
        with (
            contextlib.suppress(OSError),
            outer_folder(self.directory) as outer,
            own_folder(self.name, within=outer),
        ):
            remove([self.name], within=outer)

    # -- reading -------------------------------------------------------------------------------

    def find(self, step: int, name: str, *, size: int) -> list[IO[bytes]]:
        """Return the copies of a file of ``step`` that are of this size, the newest first.

        They are open, so that what is checked is what is read. Empty where there is none.
        """
        found: list[IO[bytes]] = []
        for copy in self._copies(step):
            if size_of(name, within=copy) == size:
                with contextlib.suppress(OSError):
                    found.append(open_file(name, within=copy))
        return found

    def open_all(
        self, checkpoint: Checkpoint, files: Mapping[str, FileEntry]
    ) -> dict[str, IO[bytes]]:
        """Return the newest copy of each of ``files`` that is here in its size, open."""
        opened: dict[str, IO[bytes]] = {}
        for name, entry in files.items():
            found = self.find(checkpoint.step, name, size=entry.size)
            opened |= {name: found[0]} if found else {}
            for file in found[1:]:
                file.close()
        return opened

    def has(self, step: int, sizes: dict[str, int]) -> frozenset[str]:
        """Return those of the files of ``step`` that are here in their size. Nothing is read."""
        held: set[str] = set()
        for copy in self._copies(step):
            held |= {name for name, size in sizes.items() if size_of(name, within=copy) == size}
        return frozenset(held)

    def _copies(self, step: int) -> Iterator[int]:
        """Give a descriptor of each copy of ``step``, the newest first."""
        with contextlib.suppress(OSError), self.opened() as folder:
            for copy in newest_first(names_in(folder), step=step):
                with contextlib.suppress(OSError), own_folder(copy, within=folder) as inside:
                    yield inside


def _is_over(name: str, outer: int) -> bool:
    """Return whether the run of a folder has ended, was cancelled, or is gone."""
    with contextlib.suppress(OSError), own_folder(name, within=outer) as folder:
        with open_file(_RUN, within=folder) as file:
            run = RunLayout(Path(os.fsdecode(file.read())))
        return run.finished.exists() or run.cancelled.exists() or not run.root.exists()
    return False
