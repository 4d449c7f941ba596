"""How all ranks of an attempt turn what they wrote into a checkpoint, or into nothing.

Rank 0 makes a fresh directory; all ranks write; each says what it wrote or what went wrong; rank 0
writes the manifest and renames, or throws the directory away. Every rank learns the outcome.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from orchestrator.checkpoint import (
    FileEntry,
    Manifest,
    damage,
    describe_files,
    discard,
    prepare,
    publish,
    retain,
)
from orchestrator.checkpoint.manifest import list_files
from orchestrator.errors import CheckpointError, FsdpqError
from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import SupersededError, check_fence
from orchestrator.runtime.waiting import VISIBLE_S, wait_for

# Said by ranks that only know that others failed: those say why.
ELSEWHERE = "it failed on another rank"

_SHARD = re.compile(r"__(?P<rank>\d+)_\d+\.distcp")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """From rank 0 to all: where to go on, or why not."""

    path: Path | None = None
    error: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class _Report:
    """From each rank to rank 0: its files, other files it saw, or what went wrong."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    error: str = ""


def begin(ranks: Agreement, env: Environment, *, step: int) -> Path:
    """Return the fresh directory that all ranks save ``step`` into.

    Raises:
        SupersededError: A newer attempt has started.
        CheckpointError: It cannot be made.
    """
    verdict = _Verdict()
    if ranks.rank == 0:
        try:
            check_fence(env)
            path = prepare(env.checkpoints, step=step, attempt=env.attempt)
            verdict = _Verdict(path)
        except (FsdpqError, OSError) as problem:
            verdict = _refusal(problem)
    return _heed(ranks.broadcast(verdict), step)


def finish(
    ranks: Agreement,
    env: Environment,
    *,
    step: int,
    temporary: Path,
    error: str,
    known: Mapping[str, FileEntry] | None = None,
    allowed: Callable[[], None] | None = None,
) -> Path:
    """Return the published checkpoint of ``step``, once all ranks have said that they saved it.

    Args:
        ranks: All of them call this.
        env: The attempt.
        step: Completed optimizer steps.
        temporary: What `begin` returned.
        error: What went wrong on this rank; empty if nothing did.
        known: Files of this rank that are durable, described while they were written; the others
            are read again.
        allowed: Raises where it may no longer be published; asked just before the rename. Without
            it only the fence is.

    Raises:
        SupersededError: A newer attempt has started.
        CheckpointError: A rank failed, or the disk did; nothing was published.
    """
    report = _Report(error=error) if error else _report(temporary, ranks, known or {})
    reports = ranks.gather(report)
    verdict = _Verdict()
    if ranks.rank == 0:
        fenced = allowed or (lambda: check_fence(env))
        verdict = _publish(env, temporary, reports, step=step, allowed=fenced)
    return _heed(ranks.broadcast(verdict), step)


def _publish(
    env: Environment,
    temporary: Path,
    reports: list[_Report],
    *,
    step: int,
    allowed: Callable[[], None],
) -> _Verdict:
    """Publish what all ranks have reported, or throw it away. On rank 0."""
    try:
        manifest = _manifest(temporary, reports, step=step)
        return _Verdict(publish(temporary, manifest, attempt=env.attempt, allowed=allowed))
    except (FsdpqError, OSError) as problem:
        discard(temporary)  # it is this attempt's own, and the disk may be full
        return _refusal(problem)


def thin_out(env: Environment, *, keep_last: int, keep_every: int | None) -> None:
    """Delete what need not be kept, on rank 0. A file that will not go is left for next time."""
    try:
        retain(
            env.checkpoints,
            keep_last=keep_last,
            keep_every=keep_every,
            attempt=env.attempt,
            allowed=lambda: check_fence(env),
        )
    except (OSError, CheckpointError):
        return


def _report(temporary: Path, ranks: Agreement, known: Mapping[str, FileEntry]) -> _Report:
    try:
        owners = {name: _owner(name, ranks.world_size) for name in list_files(temporary)}
        new = {name: owner for name, owner in owners.items() if name not in known}
        mine = [name for name, owner in new.items() if owner == ranks.rank]
        others = [name for name, owner in new.items() if owner is None]
        return _Report({**known, **describe_files(temporary, mine)}, others)
    except OSError as problem:
        return _Report(error=str(problem))


def _owner(name: str, world_size: int) -> int | None:
    """Return the rank that wrote a shard of DCP's; None for any other file."""
    found = _SHARD.fullmatch(PurePosixPath(name).name)  # frameworks put them into folders
    if found is None or int(found["rank"]) >= world_size:
        return None
    return int(found["rank"])


def _manifest(temporary: Path, reports: list[_Report], *, step: int) -> Manifest:
    errors = [f"rank {rank}: {r.error}" for rank, r in enumerate(reports) if r.error]
    errors = [error for error in errors if ELSEWHERE not in error] or errors
    if errors:
        raise CheckpointError("; ".join(errors))
    files = {name: entry for report in reports for name, entry in report.files.items()}
    # Named by whoever saw them: rank 0's own listing may be behind.
    rest = {name for report in reports for name in report.seen}
    files.update(describe_files(temporary, rest))
    if not files:
        raise CheckpointError("no rank wrote a file")
    ordered = dict(sorted(files.items()))
    manifest = Manifest(step=step, world_size=len(reports), files=ordered, at=time.time())
    _wait_until_whole(temporary, manifest)
    return manifest


def _wait_until_whole(temporary: Path, manifest: Manifest) -> None:
    """Return once rank 0's node sees all files as they were described.

    Raises:
        CheckpointError: It does not: then another node would not find them when it resumes.
    """

    def whole() -> bool | None:
        return True if damage(temporary, manifest, hashes=False) is None else None

    if wait_for(whole, timeout_s=VISIBLE_S) is None:
        raise CheckpointError(
            f"{damage(temporary, manifest, hashes=False)}, as the node of rank 0 sees it;"
            f" {temporary.parent} must lie on a file system that all nodes share"
        )


def _refusal(problem: Exception) -> _Verdict:
    return _Verdict(error=str(problem), superseded=isinstance(problem, SupersededError))


def _heed(verdict: _Verdict, step: int) -> Path:
    if verdict.superseded:
        raise SupersededError(verdict.error)
    if verdict.path is None:
        raise CheckpointError(f"step {step} could not be saved: {verdict.error}")
    return verdict.path
