"""Host memory for the copy of a state, shared with the process that writes it.

It is an anonymous file in memory (memfd): the size of /dev/shm (64 MB in many containers) does not
limit it, and nothing is left of it when both processes are gone, however they went. It counts as
memory of the job, so `memory_left` is asked first.
"""

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.errors import CheckpointError

_ALIGN = 512
_PAGE = 4096
# Pinned in parts, so that the driver's lock is free for the training in between. A tensor lies in
# one part: a copy may not reach over two.
_PART = 256 << 20


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


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
