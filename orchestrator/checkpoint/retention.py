"""Which checkpoints may go. Rank 0 alone deletes.

Only complete checkpoints count towards those that are kept: broken ones must never push the last
good one out. The newest complete one always stays.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.checkpoint.listing import Checkpoint, list_checkpoints
from orchestrator.checkpoint.names import parse_scratch, scratch_name
from orchestrator.checkpoint.publish import discard


def doomed(
    checkpoints: Sequence[Checkpoint], *, keep_last: int, keep_every: int | None = None
) -> list[Checkpoint]:
    """Return the complete checkpoints that may be deleted, the oldest first. Pure.

    Args:
        checkpoints: What is there, in any order.
        keep_last: How many of the newest complete ones stay; at least two.
        keep_every: Steps that are a multiple of this stay for good.

    Raises:
        ValueError: keep_last is below two.
    """
    if keep_last < 2:
        raise ValueError("keep_last must be 2 or more: the newest checkpoint may prove damaged")
    complete = sorted((c for c in checkpoints if c.complete), key=lambda c: c.step)
    return [
        checkpoint
        for checkpoint in complete[:-keep_last]
        if keep_every is None or checkpoint.step % keep_every
    ]


def retain(
    directory: Path,
    *,
    keep_last: int,
    keep_every: int | None = None,
    attempt: int,
    allowed: Callable[[], None],
) -> list[int]:
    """Delete the checkpoints that may go, and what earlier attempts left; return their steps.

    Args:
        directory: The checkpoint directory.
        keep_last: See `doomed`.
        keep_every: See `doomed`.
        attempt: The attempt that deletes.
        allowed: Raises where this attempt has been superseded; asked before each deletion.
    """
    steps = []
    for checkpoint in doomed(
        list_checkpoints(directory), keep_last=keep_last, keep_every=keep_every
    ):
        allowed()
        if _delete(checkpoint, attempt=attempt):
            steps.append(checkpoint.step)
    clean(directory, attempt=attempt, allowed=allowed)
    return steps


def clean(directory: Path, *, attempt: int, allowed: Callable[[], None]) -> None:
    """Remove saves that earlier attempts did not finish, and deletions that were cut off."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return
    for path in entries:
        scratch = parse_scratch(path.name)
        if scratch is None or scratch.kind == "quarantined":
            continue
        if scratch.attempt < attempt or (scratch.kind == "old" and scratch.attempt == attempt):
            allowed()
            discard(path)


def _delete(checkpoint: Checkpoint, *, attempt: int) -> bool:
    # Renamed first: a deletion that is cut off half-way must not look like a damaged checkpoint.
    name = scratch_name(checkpoint.step, kind="old", attempt=attempt)
    condemned = checkpoint.path.with_name(name)
    try:
        checkpoint.path.rename(condemned)
    except OSError:
        return False
    discard(condemned)
    return True
