"""Host memory for the copy of a state, shared with the process that writes it.

It is an anonymous file in memory (memfd): the size of /dev/shm (64 MB in many containers) does not
limit it, and nothing is left of it when both processes are gone, however they went. It counts as
memory of the job, so what the node and the job's cgroup have left is looked at first.
"""

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import CheckpointError

_ALIGN = 512
_PAGE = 4096
# Pinned in parts, so that the driver's lock is free for the training in between. A tensor lies in
# one part: a copy may not reach over two.
_PART = 256 << 20
_KEPT_FREE = 0.1  # of what is left, for everybody else


@dataclass(frozen=True, slots=True)
class Region:
    """Where a tensor lies in the memory. `dtype` is torch's name without the "torch."."""

    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all tensors, and the (offset, bytes) of parts that none reaches over."""

    regions: tuple[Region, ...]
    parts: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return sum(size for _, size in self.parts)


def lay_out(tensors: Sequence[torch.Tensor]) -> Layout:
    """Return places for ``tensors``, in their order."""
    regions, parts = [], []
    start = end = 0
    for tensor in tensors:
        if end > start and end - start + tensor.nbytes > _PART:
            parts.append((start, _up(end, _PAGE) - start))
            start = end = _up(end, _PAGE)
        name = str(tensor.dtype).removeprefix("torch.")
        regions.append(Region(end, tensor.nbytes, name, tuple(tensor.shape)))
        end = _up(end + tensor.nbytes, _ALIGN)
    parts.append((start, max(_PAGE, _up(end, _PAGE) - start)))
    return Layout(tuple(regions), tuple(parts))


class HostMemory:
    """The memory. A second process maps it by way of `file`."""

    def __init__(self, file: int, nbytes: int) -> None:
        self.file = file
        self.nbytes = nbytes
        self._pinned: list[int] = []
        self._map = mmap.mmap(file, nbytes)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def make(cls, nbytes: int) -> "HostMemory":
        """Return fresh memory whose pages are there: a lack of them shows now, not in a copy.

        Raises:
            OSError: There is not enough.
        """
        file = os.memfd_create("fsdpq-checkpoint")
        try:
            os.ftruncate(file, nbytes)
            os.posix_fallocate(file, 0, nbytes)
            return cls(file, nbytes)
        except OSError:
            os.close(file)
            raise

    def tensor(self, region: Region) -> torch.Tensor:
        """Return the tensor at ``region``."""
        shape, dtype = region.shape, getattr(torch, region.dtype)
        if not region.nbytes:
            return torch.empty(shape, dtype=dtype)
        # A storage of its own: `torch.save` writes whole storages.
        part = torch.frombuffer(
            self._map, dtype=torch.uint8, count=region.nbytes, offset=region.offset
        )
        return part.view(dtype).view(shape)

    def pin(self, parts: Sequence[tuple[int, int]]) -> None:
        """Make copies from the GPU need no processor. Lets go of the interpreter lock.

        Raises:
            CheckpointError: CUDA refuses.
        """
        runtime = _cuda()
        for offset, size in parts:
            address = self._bytes.data_ptr() + offset
            code = int(runtime.cudaHostRegister(address, size, 1))
            if code:
                raise CheckpointError(f"{size:,} bytes of memory cannot be pinned: {code}")
            self._pinned.append(address)

    def close(self) -> None:
        """Give the memory back, once nobody holds a tensor of it."""
        if self._pinned:
            runtime = _cuda()
            for address in self._pinned:
                runtime.cudaHostUnregister(address)
        self._pinned = []
        self._bytes = torch.empty(0, dtype=torch.uint8)
        with contextlib.suppress(BufferError):  # somebody does; it goes when they do
            self._map.close()
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


def lack(nbytes: int, *, ranks: int, root: Path = Path("/")) -> str:
    """Return why this node has no room for ``nbytes`` of each of its ``ranks``; empty if it has."""
    left = available(root)
    wanted = nbytes * ranks
    if left is None or wanted <= left * (1 - _KEPT_FREE):
        return ""
    return (
        f"{wanted / 2**30:.1f} GiB of host memory are needed for the copy ({ranks} ranks on this"
        f" node), and {left / 2**30:.1f} GiB are left"
    )


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes that the node and the cgroups of this process have left, None if unknown.

    Source: proc(5) for MemAvailable; Documentation/admin-guide/cgroup-v2.rst for memory.max; what
    the page cache holds (file pages) is given back when memory is asked for.
    """
    found = [_node(root), *_cgroups(root)]
    return min((value for value in found if value is not None), default=None)


def _node(root: Path) -> int | None:
    return _line(root / "proc/meminfo", "MemAvailable:", unit=1024)


def _cgroups(root: Path) -> list[int | None]:
    """Return what each cgroup above this process has left. Version 2, else the memory of 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[int | None] = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds == "":
            names = ("memory.max", "memory.current", "")
            found += _above(root / "sys/fs/cgroup", name, *names)
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            found += _above(root / "sys/fs/cgroup/memory", name, *names)
    return found


def _above(top: Path, name: str, limit: str, used: str, prefix: str) -> list[int]:
    folder = top / name.lstrip("/")
    found = []
    while folder.is_relative_to(top):
        most, now = _number(folder / limit), _number(folder / used)
        if most is not None and now is not None:
            # Not "file": that counts memory like ours too, which nobody gives back.
            lists = (f"{prefix}{which}_file " for which in ("active", "inactive"))
            cached = sum(_line(folder / "memory.stat", start, unit=1) or 0 for start in lists)
            found.append(max(0, most - now + cached))
        folder = folder.parent
    return found


def _line(path: Path, start: str, *, unit: int) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) * unit for line in lines if line.startswith(start))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())  # "max" is no number
    except (OSError, ValueError):
        return None


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
