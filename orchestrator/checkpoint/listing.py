"""Which checkpoints there are, and which of them are complete.

The directories are the truth. A pointer file such as LATEST is not read: it can be stale (the disk
was full when it was to be replaced) or point at a directory that is gone.
"""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.damage import Fault, damage, unreadable
from orchestrator.checkpoint.manifest import read_manifest
from orchestrator.checkpoint.names import DCP_METADATA, LATEST, parse_scratch, published_step
from orchestrator.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint.

    Attributes:
        step: Completed steps.
        path: Its directory.
        complete: It has all that its manifest names.
        reason: Why it is not complete; empty if it is.
        unread: It is not complete because it could not be read here; it may well be sound.
        unverified: Files whose hashes whoever loads it has yet to compare.
    """

    step: int
    path: Path
    complete: bool
    reason: str = ""
    unread: bool = False
    unverified: frozenset[str] = frozenset()


def inspect(path: Path, *, step: int, verify: bool = False) -> Checkpoint:
    """Return what is to be said about the checkpoint of ``step`` at ``path``.

    Lengths are always compared with the manifest; hashes only with ``verify``.
    """
    fault = _fault(path, step=step, verify=verify)
    if fault is None:
        return Checkpoint(step, path, complete=True)
    return Checkpoint(step, path, complete=False, reason=fault.reason, unread=fault.unread)


def list_checkpoints(directory: Path, *, verify: bool = False) -> list[Checkpoint]:
    """Return all published checkpoints, complete or not, the newest first.

    Anything whose name is not exactly `step-<number>` is left out. A missing directory has none.

    Raises:
        CheckpointError: The directory is there and cannot be listed. That is no empty directory:
            a run that took it for one would silently start again at step 0.
    """
    steps = {step: path for path in _entries(directory) if (step := _step(path)) is not None}
    return [inspect(steps[step], step=step, verify=verify) for step in sorted(steps, reverse=True)]


def newest_complete(
    directory: Path, *, verify: bool = False, before: int | None = None
) -> Checkpoint | None:
    """Return the newest complete checkpoint, older than step ``before`` if that is given.

    Raises:
        CheckpointError: The directory is there and cannot be listed.
    """
    for path in sorted(_entries(directory), key=lambda path: _step(path) or 0, reverse=True):
        step = _step(path)
        if step is None or (before is not None and step >= before):
            continue
        found = inspect(path, step=step, verify=verify)
        if found.complete:
            return found
    return None


def has_history(directory: Path) -> bool:
    """Return whether this directory ever held a checkpoint: then a run may not start at step 0.

    Raises:
        CheckpointError: The directory is there and cannot be listed.
    """
    return any(path.name == LATEST or _was_published(path) for path in _entries(directory))


def _was_published(path: Path) -> bool:
    scratch = parse_scratch(path.name)
    return _step(path) is not None or (scratch is not None and scratch.kind != "tmp")


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise CheckpointError(
            f"{directory}: the checkpoints cannot be listed: {problem.strerror}. Nothing is"
            " started, as that could lose the progress of the run; make the directory readable"
        ) from None


def _step(path: Path) -> int | None:
    return published_step(path.name)


def _fault(path: Path, *, step: int, verify: bool) -> Fault | None:
    try:
        if not path.is_dir():
            return Fault("is not a directory")
        manifest = read_manifest(path)
    except FileNotFoundError:
        return Fault(_without_manifest(path))
    except CheckpointError as problem:
        return Fault(str(problem))
    except OSError as problem:
        return unreadable("", problem)
    if manifest.step != step:
        return Fault(
            f"its manifest is of step {manifest.step}: the directory was renamed or copied"
        )
    return damage(path, manifest, hashes=verify)


def _without_manifest(path: Path) -> str:
    if (path / DCP_METADATA).is_file():
        return "no manifest: the save was cut off"
    return "no manifest and no .metadata: the save was cut off early"
