"""Loads a checkpoint from the node's own copies where they are what was published.

A rank opens and hashes the copies of those files that it reads anyway; what is not there, or not
the same, it reads from the checkpoint. Files that were not verified when the checkpoint was chosen,
because some node said that it has a copy, are verified here before they count, if any rank reads
them: each by one rank, as DCP's plan passes through rank 0.
"""

import contextlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, cast

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from orchestrator.checkpoint import (
    Checkpoint,
    Fault,
    Manifest,
    damage,
    read_manifest,
    unreadable,
)
from orchestrator.checkpoint.hashing import hash_file
from orchestrator.errors import CheckpointError
from orchestrator.trainer.copying import tell
from orchestrator.trainer.local_copy import LocalCopy

_HASH_THREADS = 4
_READ_THREADS = 4


def holder(
    local: LocalCopy | None, *, first: bool
) -> Callable[[Checkpoint], frozenset[str]] | None:
    """Return what says which files this node has; None without copies.

    The ``first`` rank of a node speaks for all of it.
    """
    if local is None:
        return None
    return lambda checkpoint: _held(local, checkpoint) if first else frozenset()


def _held(local: LocalCopy, checkpoint: Checkpoint) -> frozenset[str]:
    """Return which files of ``checkpoint`` this node seems to have a copy of; nothing is read.

    Raises:
        OSError: The manifest cannot be read.
        CheckpointError: It is damaged.
    """
    files = read_manifest(checkpoint.path).files
    return local.has(checkpoint.step, {name: entry.size for name, entry in files.items()})


class Copies:
    """The copies of the files of one checkpoint that this rank has found to be right.

    Without a ``local`` folder there are none. ``known`` gives the SHA-256 of an open file if it is
    known, None if not.
    """

    def __init__(
        self,
        local: LocalCopy | None,
        checkpoint: Checkpoint,
        known: Callable[[IO[bytes]], str | None] = lambda _: None,
    ) -> None:
        self.checkpoint = checkpoint
        self.local = local
        self._known = known
        self._found: dict[str, IO[bytes] | None] = {}

    @cached_property
    def manifest(self) -> Manifest:
        """The checkpoint's; it is the judge of all copies.

        Raises:
            OSError: It cannot be read.
            CheckpointError: It is damaged.
        """
        return read_manifest(self.checkpoint.path)

    def look(self, names: Collection[str]) -> None:
        """Look for ``names``, and hash what is there.

        Raises:
            OSError: The manifest cannot be read.
            CheckpointError: It is damaged.
        """
        if self.local is None:
            return
        new = sorted(set(names) - set(self._found))
        with ThreadPoolExecutor(_HASH_THREADS) as pool:
            self._found |= dict(zip(new, pool.map(self._find, new), strict=True))

    def get(self, name: str) -> IO[bytes] | None:
        """Return the open copy of ``name``, None if there is none that is right."""
        return self._found.get(name)

    def hint(self, path: Path) -> str | None:
        """Return what is known of the SHA-256 of ``path``, in hexadecimal digits.

        Raises:
            OSError: It cannot be opened.
        """
        with path.open("rb") as file:
            return self._known(file)

    def close(self) -> None:
        """Close the files."""
        for file in self._found.values():
            if file is not None:
                file.close()
        self._found = {}

    def _find(self, name: str) -> IO[bytes] | None:
        step, entry = self.checkpoint.step, self.manifest.files.get(name)
        if entry is None or self.local is None:
            return None
        found = self.local.find(step, name, size=entry.size)
        right = next((file for file in found if self._is(file, entry.sha256)), None)
        for file in found:
            if file is not right:
                file.close()
        if found and right is None:
            tell(f"the local copy of {name} of step {step} is not what was published")
        return right

    def _is(self, file: IO[bytes], sha256: str) -> bool:
        try:
            return (self._known(file) or hash_file(file).sha256) == sha256
        except OSError:
            return False


class CopyReader(FileSystemReader):
    """DCP's reader, which prefers ``copies``.

    Attributes:
        from_copy: Bytes that were read from copies.
        from_checkpoint: Bytes that were read from the checkpoint itself.
        fault: Why something of the checkpoint did not read on this rank. It is kept here, for DCP
            turns some of what a reader raises into words.
    """

    def __init__(self, copies: Copies) -> None:
        super().__init__(copies.checkpoint.path)
        self.fault: Fault | None = None
        self.fs = _CopiesFirst(copies.get, self._note)
        self.from_copy = self.from_checkpoint = 0
        self._copies = copies

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Find the copies of what ``plan`` reads; tell rank 0 what is left to the checkpoint."""
        sizes = self._sizes(plan)
        self._copies.look(sizes)
        left = [name for name in sizes if self._copies.get(name) is None]
        self.from_checkpoint = sum(sizes[name] for name in left)
        self.from_copy = sum(sizes.values()) - self.from_checkpoint
        return replace(plan, storage_data=left)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Share out what has to be verified before it counts."""
        read = {name for plan in plans for name in plan.storage_data}
        doubtful = sorted(read & self._copies.checkpoint.unverified)
        return [
            replace(plan, storage_data=doubtful[number :: len(plans)])
            for number, plan in enumerate(plans)
        ]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Verify this rank's share, then read.

        Raises:
            CheckpointError: The checkpoint is damaged.
        """
        if names := plan.storage_data:
            folder, manifest = self._copies.checkpoint.path, self._copies.manifest
            hint = self._copies.hint
            if fault := damage(folder, manifest, hashes=True, names=names, hint=hint):
                self.fault = fault
                raise CheckpointError(fault.reason)
        read = partial(super().read_data, planner=planner)
        read(replace(plan, items=[item for item in plan.items if _is_object(item)]))
        with ThreadPoolExecutor(_READ_THREADS) as pool:
            list(pool.map(read, self._tensors_by_file(plan)))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _note(self, name: str, problem: OSError) -> None:
        # DCP goes on to look for metadata of this rank alone, which are not there.
        if self.fault is None or not self.fault.unread:
            self.fault = unreadable(name, problem)

    def _tensors_by_file(self, plan: LoadPlan) -> list[LoadPlan]:
        """Return a plan for each file: one thread alone makes a gigabyte of tensors a second."""
        items: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            if not _is_object(item):
                where = self.storage_data[item.storage_index]
                items.setdefault(where.relative_path, []).append(item)
        return [replace(plan, items=some) for some in items.values()]

    def _sizes(self, plan: LoadPlan) -> Mapping[str, int]:
        """Return the files that ``plan`` reads, and how many bytes of each."""
        sizes: dict[str, int] = {}
        for item in plan.items:
            where = self.storage_data[item.storage_index]
            sizes[where.relative_path] = sizes.get(where.relative_path, 0) + where.length
        return sizes


class _CopiesFirst(FileSystem):
    """Opens a copy where there is one; tells of what of the checkpoint itself does not read."""

    def __init__(
        self, copy_of: Callable[[str], IO[bytes] | None], note: Callable[[str, OSError], None]
    ) -> None:
        self._copy_of, self._note = copy_of, note

    @contextlib.contextmanager
    def create_stream(self, path: str | Path, mode: str) -> Iterator[io.IOBase]:  # type: ignore[override]
        """Give the copy of ``path``, or ``path`` itself."""
        copy = self._copy_of(Path(path).name)
        if copy is None or mode != "rb":
            try:
                with super().create_stream(path, mode) as stream:
                    yield stream
            except OSError as problem:
                self._note(Path(path).name, problem)
                raise
            return
        copy.seek(0)
        yield cast(io.IOBase, copy)


def _is_object(item: ReadItem) -> bool:
    """Return whether ``item`` is no tensor; those are put into one tree of dicts, so in turn."""
    return item.type == LoadItemType.BYTE_IO
