"""How a checkpoint gets its name, and how a damaged one loses it. Rank 0 alone calls these.

A save goes into a fresh `step-N.tmp-<attempt>`: writing over an existing checkpoint and dying
half-way leaves old metadata beside new shards, which loads without an error and is neither.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from orchestrator.checkpoint.durable import sync_directory, write_text
from orchestrator.checkpoint.listing import inspect
from orchestrator.checkpoint.manifest import Manifest, write_manifest
from orchestrator.checkpoint.names import (
    LATEST,
    QUARANTINE_REASON,
    published_name,
    scratch_name,
)
from orchestrator.errors import CheckpointError

_COPIES = 1000


def prepare(directory: Path, *, step: int, attempt: int) -> Path:
    """Return a fresh, empty directory to save ``step`` into. Removes what this attempt left there.

    Raises:
        OSError: It cannot be made.
    """
    path = directory / scratch_name(step, kind="tmp", attempt=attempt)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    return path


def publish(
    temporary: Path, manifest: Manifest, *, attempt: int, allowed: Callable[[], None]
) -> Path:
    """Turn the saved directory ``temporary`` into the checkpoint of its step; return its path.

    A complete checkpoint of that step stays as it is, and the new one is dropped: two saves of one
    step say the same. One that is not complete is quarantined first.

    Args:
        temporary: What all ranks have finished writing.
        manifest: Its description, written last.
        attempt: The attempt that saved it.
        allowed: Raises where this attempt has been superseded; asked just before the rename.

    Raises:
        CheckpointError: It cannot be published.
        OSError: The disk refused.
    """
    target = temporary.parent / published_name(manifest.step)
    write_manifest(temporary, manifest)
    sync_directory(temporary)
    allowed()
    if target.is_symlink() or target.exists():
        found = inspect(target, step=manifest.step)
        if found.complete:
            discard(temporary)
            return target
        quarantine(target, step=manifest.step, attempt=attempt, reason=found.reason)
    temporary.rename(target)
    sync_directory(target.parent)
    write_text(target.parent / LATEST, target.name + "\n")
    return target


def quarantine(path: Path, *, step: int, attempt: int, reason: str) -> Path:
    """Rename the checkpoint at ``path`` so that nothing counts it any more; return its new path.

    Nothing is deleted: people may want to look, or to save what is left.

    Raises:
        CheckpointError: No free name was found.
        OSError: It cannot be renamed.
    """
    for copy in range(_COPIES):
        target = path.with_name(scratch_name(step, kind="quarantined", attempt=attempt, copy=copy))
        if target.is_symlink() or target.exists():
            continue
        path.rename(target)
        _note(target, reason)
        sync_directory(target.parent)
        return target
    raise CheckpointError(f"{path}: no free name to quarantine it under")


def _note(path: Path, reason: str) -> None:
    # A file in the place of a directory, a full disk: the rename was what mattered.
    if path.is_dir() and not path.is_symlink():
        try:
            write_text(path / QUARANTINE_REASON, reason + "\n")
        except OSError:
            return


def discard(path: Path) -> None:
    """Delete a directory or a link, whatever is left of it; a missing one is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
