"""Which checkpoints there are, and which of them are complete.

The directories are the truth. A pointer file such as LATEST is not read: it can be stale (the disk
was full when it was to be replaced) or point at a directory that is gone.
"""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.damage import Fault, damage, unreadable
from orchestrator.checkpoint.manifest import read_manifest
from orchestrator.checkpoint.names import DCP_METADATA, LATEST, parse_scratch, published_step
from orchestrator.errors import CheckpointError, UnreadError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint.

    Attributes:
        step: Completed steps.
        path: Its directory.
        complete: It has all that its manifest names.
        reason: Why it is not complete; empty if it is.
        unread: It is not complete because it could not be read here; it may well be sound.
        unsure: That may be so: see `Fault`.
        unverified: Files whose hashes whoever loads it has yet to compare.
    """

    step: int
    path: Path
    complete: bool
    reason: str = ""
    unread: bool = False
    unsure: bool = False
    unverified: frozenset[str] = frozenset()


def inspect(path: Path, *, step: int, verify: bool = False) -> Checkpoint:
    """Return what is to be said about the checkpoint of ``step`` at ``path``.

    Lengths are always compared with the manifest; hashes only with ``verify``.
    """
    fault = _fault(path, step=step, verify=verify)
    if fault is None:
        return Checkpoint(step, path, complete=True)
    return Checkpoint(
        step,
        path,
        complete=False,
        reason=fault.reason,
        unread=fault.unread,
        unsure=fault.unsure,
    )


def list_checkpoints(directory: Path, *, verify: bool = False) -> list[Checkpoint]:
    """Return all published checkpoints, complete or not, the newest first.

    Anything whose name is not exactly `step-<number>` is left out. A missing directory has none.

    Raises:
        UnreadError: The directory is there and cannot be listed. That is no empty directory:
            a run that took it for one would silently start again at step 0.
    """
    return list(_newest_first(directory, verify))


def newest_complete(
    directory: Path, *, verify: bool = False, before: int | None = None
) -> Checkpoint | None:
    """Return the newest complete checkpoint, older than step ``before`` if that is given.

    Raises:
        UnreadError: The directory is there and cannot be listed.
    """
    found = _newest_first(directory, verify, before)
    return next((one for one in found if one.complete), None)


def newest_wanted(directory: Path, *, verify: bool = False) -> Checkpoint | None:
    """Return the checkpoint that a resume begins at, or that it ends for: one it could not read.

    Raises:
        UnreadError: The directory is there and cannot be listed.
    """
    return wanted(_newest_first(directory, verify))


def wanted(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the same of ``checkpoints``, which come with the newest first."""
    return next((found for found in checkpoints if found.complete or found.unread), None)


def has_history(directory: Path) -> bool:
    """Return whether this directory ever held a checkpoint: then a run may not start at step 0.

    Raises:
        UnreadError: The directory is there and cannot be listed.
    """
    return any(path.name == LATEST or _was_published(path) for path in _entries(directory))


def _was_published(path: Path) -> bool:
    scratch = parse_scratch(path.name)
    return _step(path) is not None or (scratch is not None and scratch.kind != "tmp")


def _newest_first(directory: Path, verify: bool, before: int | None = None) -> Iterator[Checkpoint]:
    """Look at each checkpoint when it is asked for; whether they can be listed shows at once."""
    paths = {step: path for path in _entries(directory) if (step := _step(path)) is not None}
    steps = (step for step in sorted(paths, reverse=True) if before is None or step < before)
    return (inspect(paths[step], step=step, verify=verify) for step in steps)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError as problem:
        if isinstance(problem, FileNotFoundError) and not directory.is_symlink():
            return []
        raise UnreadError(
            f"{directory}: the checkpoints cannot be listed: {problem.strerror}. Nothing is"
            " started, as that could lose the progress of the run; make the directory readable"
        ) from None


def _step(path: Path) -> int | None:
    return published_step(path.name)


def _fault(path: Path, *, step: int, verify: bool) -> Fault | None:
    try:
        # Not by is_dir(), which from Python 3.14 on takes what it cannot look at for no directory.
        if not stat.S_ISDIR(path.stat().st_mode):
            return Fault("is not a directory")
        manifest = read_manifest(path)
    except FileNotFoundError:
        return _without_manifest(path)
    except CheckpointError as problem:
        return Fault(str(problem))
    except OSError as problem:
        return unreadable("", problem)
    if manifest.step != step:
        return Fault(
            f"its manifest is of step {manifest.step}: the directory was renamed or copied"
        )
    return damage(path, manifest, hashes=verify)


def _without_manifest(path: Path) -> Fault:
    try:
        if path.is_symlink() and not path.exists():
            return Fault("is a link to what is not there", unread=True)
        if (path / DCP_METADATA).is_file():
            return Fault("no manifest: the save was cut off")
    except OSError as problem:
        return unreadable("", problem)
    return Fault("no manifest and no .metadata: the save was cut off early")
