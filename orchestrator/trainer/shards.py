"""Writes files in DCP's format, and hashes them while it does.

A file is a row of pieces, each a tensor as `torch.save` writes it or bytes as they are. DCP's own
writer loses an error of all but one of its threads (torch 2.11 to 2.13): it would report a file
that the full disk has cut off as written. Here every error counts, and no file is read once more
for its hash.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

import torch

from orchestrator.checkpoint import FileEntry
from orchestrator.trainer.direct import open_new

# Hashed and written in parts that stay in the processor's cache between the two.
_PART = 4 << 20

T = TypeVar("T")
Piece = Callable[[], torch.Tensor | bytes]


@dataclass(frozen=True, slots=True)
class Plan:
    """A file to write: its name and its pieces, each made only when its turn comes."""

    name: str
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is on disk. `spans` has (offset, length) in bytes of each piece."""

    name: str
    entry: FileEntry
    spans: tuple[tuple[int, int], ...]


class Sink:
    """A new file that hashes what is written to it; ``direct`` is past the page cache."""

    def __init__(self, path: Path, *, direct: bool = False) -> None:
        self._file = open_new(path, direct=direct)
        self._hash = hashlib.sha256()
        self.position = 0
        self.problem: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``. Hash and disk let go of the interpreter lock."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PART):
            part = view[start : start + _PART]
            self._hash.update(part)
            try:
                self._file.write(part)
            except OSError as problem:
                self.problem = self.problem or problem
                raise
        self.position += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: `close` does. `torch.save` wants it after each tensor."""

    def close(self) -> FileEntry:
        """Make the file durable and describe it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return FileEntry(self.position, self._hash.hexdigest())

    def drop(self) -> None:
        """Close what has failed; a second error says nothing new."""
        try:
            self._file.close()
        except OSError:
            return


def write_file(folder: Path, plan: Plan, *, direct: bool = False) -> Written:
    """Write one file; ``direct`` is past the page cache, where that can be.

    Raises:
        OSError: The disk refuses.
    """
    sink = Sink(folder / plan.name, direct=direct)
    try:
        spans = tuple(_write(sink, piece()) for piece in plan.pieces)
        return Written(plan.name, sink.close(), spans)
    except BaseException:
        sink.drop()
        if sink.problem is not None:  # torch.save says instead that it stands at a wrong place
            raise sink.problem from None
        raise


def write_files(
    folder: Path, plans: Sequence[Plan], *, threads: int, direct: bool = False
) -> list[Written]:
    """Write files, ``threads`` at once. The first error is raised once all threads have ended.

    Raises:
        OSError: The disk refuses.
    """
    if not plans:
        return []
    with ThreadPoolExecutor(min(threads, len(plans)), thread_name_prefix="fsdpq-write") as pool:
        return list(pool.map(lambda plan: write_file(folder, plan, direct=direct), plans))


def share_out(items: Iterable[tuple[int, T]], *, shares: int) -> list[list[T]]:
    """Return the items, given with their sizes, in at most ``shares`` lists of about equal size."""
    lists: list[list[T]] = [[] for _ in range(shares)]
    sizes = [0] * shares
    for size, item in sorted(items, key=lambda pair: -pair[0]):
        smallest = sizes.index(min(sizes))
        lists[smallest].append(item)
        sizes[smallest] += size + 1  # many empty ones are spread, too
    return [found for found in lists if found]


def _write(sink: Sink, data: torch.Tensor | bytes) -> tuple[int, int]:
    start = sink.position
    if isinstance(data, bytes):
        sink.write(data)
    else:
        torch.save(_alone(data), cast(IO[bytes], sink))
    return start, sink.position - start


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` on the CPU with no more memory than its own: `torch.save` writes it all."""
    tensor = tensor.detach().cpu()
    own = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if own else tensor.clone()
