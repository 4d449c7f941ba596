"""Which checkpoint an attempt starts from: rank 0 chooses, all ranks help to verify it.

Rank 0 alone lists and renames, since on a shared file system two nodes may see different listings
for half a minute. Hashing is shared out over the ranks: one reader would need many minutes for a
checkpoint of a large model.
"""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from orchestrator.checkpoint import (
    Checkpoint,
    Fault,
    Hint,
    damage,
    has_history,
    insist,
    list_checkpoints,
    no_hint,
    on_this_node,
    quarantine,
    read_manifest,
    unreadable,
)
from orchestrator.checkpoint.durable import write_json
from orchestrator.checkpoint.names import MANIFEST
from orchestrator.checkpoint.shares import share_of
from orchestrator.errors import CheckpointError, FsdpqError, UnreadError
from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import check_fence
from orchestrator.runtime.patience import never
from orchestrator.runtime.waiting import VISIBLE_S, wait_for

Verify = Literal["full", "size"]
# Which files of a checkpoint this rank, when it loads, will read elsewhere and verify by itself.
Held = Callable[[Checkpoint], Collection[str]]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A checkpoint that was quarantined, where it lies now, and why."""

    path: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What rank 0 decided. ``history`` says that there have been checkpoints before."""

    checkpoint: Checkpoint | None = None
    quarantined: list[SetAside] = field(default_factory=list)
    history: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """How closely a rank looks at a checkpoint.

    Attributes:
        verify: Compare the hashes too, or the lengths alone.
        held: What this rank leaves unverified now; on all ranks or on none.
        hint: What is known of hashes already.
        again: Whether rank 0 looks once more at what could not be read; takes its time to say so.
    """

    verify: Verify = "full"
    held: Held | None = None
    hint: Hint = no_hint
    again: Callable[[UnreadError], bool] = never


@dataclass(frozen=True, slots=True)
class _Message:
    """From rank 0 to the others: verify your share of this, or this is the end of it."""

    held: Checkpoint | None = None
    verify: Checkpoint | None = None
    choice: Choice | None = None
    error: str = ""


def choose(ranks: Agreement, env: Environment, look: Look, *, before: int | None = None) -> Choice:
    """Return the newest checkpoint that verifies, the same on all ranks; quarantines bad ones.

    Files that some rank says are held are left `unverified`, but for their sizes.
    Side effects on rank 0: renames checkpoints that are not what their manifest says.

    Raises:
        FsdpqError: The checkpoints cannot be listed, one that may be the newest cannot be read, or
            a bad one cannot be renamed.
    """
    if ranks.rank != 0:
        return _follow(ranks, look)
    try:
        choice = _patiently(ranks, env, look, before=before)
    except (FsdpqError, OSError) as problem:
        ranks.broadcast(_Message(error=str(problem)))
        raise
    ranks.broadcast(_Message(choice=choice))
    return choice


def _patiently(ranks: Agreement, env: Environment, look: Look, *, before: int | None) -> Choice:
    # Nothing is set aside before all that is wanted has been read, so it can be done once more.
    while True:
        try:
            return _lead(ranks, env, look, before=before)
        except UnreadError as problem:
            if not look.again(problem):
                raise


def _lead(ranks: Agreement, env: Environment, look: Look, *, before: int | None) -> Choice:
    history = has_history(env.checkpoints)
    damaged: list[tuple[Checkpoint, Fault]] = []
    chosen: Checkpoint | None = None
    for found in list_checkpoints(env.checkpoints):
        if before is not None and found.step >= before:
            continue
        found, fault = _examine(ranks, found, look)
        if fault is None:
            chosen = found
            break
        insist(found.path, replace(fault, reason=on_this_node(fault.reason, ranks.rank)))
        damaged.append((found, fault))
    if chosen is None:
        _insist_on_any(damaged, ranks.rank)
    aside = [set_aside(env, found, fault.reason) for found, fault in damaged]
    return Choice(chosen, aside, history)


def _examine(ranks: Agreement, found: Checkpoint, look: Look) -> tuple[Checkpoint, Fault | None]:
    """Return ``found``, with what is left unverified, and what is wrong with it."""
    if not found.complete:
        return found, Fault(found.reason, found.unread, found.unsure)
    if look.verify == "size":
        return found, None
    found = replace(found, unverified=_held_together(ranks, found, look.held))
    return found, _verify_together(ranks, found, look.hint)


def _insist_on_any(damaged: list[tuple[Checkpoint, Fault]], rank: int) -> None:
    """Return if that none of them is sound cannot be the fault of their file system.

    Raises:
        CheckpointError: It may be.
    """
    for found, fault in damaged:
        if fault.unsure:
            reason = on_this_node(fault.reason, rank)
            insist(found.path, replace(fault, reason=reason, unread=True))


def _follow(ranks: Agreement, look: Look) -> Choice:
    while True:
        message: _Message = ranks.broadcast()
        if message.error:
            raise CheckpointError(message.error)
        if message.choice is not None:
            return message.choice
        if message.held is not None:
            ranks.gather(_held(message.held, look.held))
        if message.verify is not None:
            ranks.gather(
                _share_damage(message.verify, ranks.rank, ranks.world_size, hint=look.hint)
            )


def _held_together(ranks: Agreement, checkpoint: Checkpoint, held: Held | None) -> frozenset[str]:
    if held is None:  # on all ranks alike
        return frozenset()
    ranks.broadcast(_Message(held=checkpoint))
    return frozenset().union(*ranks.gather(_held(checkpoint, held)))


def _held(checkpoint: Checkpoint, held: Held | None) -> frozenset[str]:
    try:
        return frozenset(held(checkpoint) if held is not None else ())
    except (OSError, CheckpointError):
        return frozenset()


def _verify_together(ranks: Agreement, checkpoint: Checkpoint, hint: Hint) -> Fault | None:
    ranks.broadcast(_Message(verify=checkpoint))
    found: list[Fault | None] = ranks.gather(
        _share_damage(checkpoint, 0, ranks.world_size, hint=hint)
    )
    for rank, fault in enumerate(found):
        if fault is None:
            continue
        # Another node may not see the files yet, or may not read them right: a good checkpoint
        # must not be lost to that, so rank 0 looks for itself.
        if rank == 0 or (fault := _share_damage(checkpoint, rank, ranks.world_size)):
            return fault
    return None


def _share_damage(
    checkpoint: Checkpoint, rank: int, world_size: int, *, hint: Hint = no_hint
) -> Fault | None:
    try:
        manifest = read_manifest(checkpoint.path)
    except OSError as problem:
        return unreadable("the manifest", problem)
    except CheckpointError as problem:
        return Fault(str(problem))
    share = share_of(manifest.files, rank=rank, world_size=world_size)
    names = [name for name in share if name not in checkpoint.unverified]
    return damage(checkpoint.path, manifest, hashes=True, names=names, hint=hint)


def set_aside(env: Environment, checkpoint: Checkpoint, reason: str) -> SetAside:
    """Quarantine ``checkpoint`` for ``reason`` and return what was done.

    Raises:
        SupersededError: A newer attempt has started.
        CheckpointError: It could not be renamed.
    """
    check_fence(env)
    try:
        path = quarantine(checkpoint.path, step=checkpoint.step, attempt=env.attempt, reason=reason)
    except OSError as problem:
        raise CheckpointError(
            f"{checkpoint.path} is damaged ({reason}) and cannot be renamed: {problem.strerror}"
        ) from None
    return SetAside(str(path), checkpoint.step, reason)


def write_resume(
    env: Environment, *, step: int | None, quarantined: list[SetAside], error: str = ""
) -> None:
    """Record where this attempt starts, or why it cannot: for the launcher, and for other ranks."""
    content = {
        "step": step,
        "quarantined": [asdict(item) for item in quarantined],
        "restart": _restart(),
        "error": error,
    }
    write_json(env.files.resume, content)


def wait_for_resume(env: Environment, *, timeout_s: float) -> Checkpoint | None:
    """Return what rank 0 chose, once its file is there. For ranks that cannot talk to rank 0.

    Raises:
        CheckpointError: Rank 0 found nothing usable, or was not heard of in time.
    """
    content = wait_for(lambda: _read_resume(env), timeout_s=timeout_s)
    if content is None:
        raise CheckpointError(f"rank 0 has not chosen a checkpoint within {timeout_s:g} s")
    if content["error"]:
        raise CheckpointError(content["error"])
    if content["step"] is None:
        return None
    step = int(content["step"])
    return Checkpoint(step, env.checkpoints / f"step-{step}", complete=True)


def wait_until_visible(checkpoint: Checkpoint) -> None:
    """Return once this node sees ``checkpoint``.

    Raises:
        CheckpointError: It does not show up.
    """
    if wait_for(lambda: _is_visible(checkpoint) or None, timeout_s=VISIBLE_S) is None:
        raise CheckpointError(
            f"{checkpoint.path} is not to be seen on {os.uname().nodename}; checkpoints must lie on"
            " a file system that all nodes share"
        )


def _is_visible(checkpoint: Checkpoint) -> bool:
    try:
        return (checkpoint.path / MANIFEST).is_file()
    except OSError:  # a stale handle passes, as a stale listing does
        return False


def _read_resume(env: Environment) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(env.files.resume.read_text())
    except (OSError, ValueError):
        return None
    return content if content.get("restart") == _restart() else None


def _restart() -> int:
    # torchrun can restart its workers within an attempt; then an older file does not count.
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
