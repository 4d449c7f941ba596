"""Reads rows of a weight. Files are read, not mapped: host memory holds one piece at a time."""

from collections.abc import Iterator
from math import prod

import torch

from orchestrator.errors import SpecError
from orchestrator.weightfiles.finding import Entry

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Large enough that a shared file system streams, small beside any model.
PIECE = 32 << 20


def read_rows(
    entry: Entry, begin: int, end: int, *, piece: int = PIECE
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the rows ``begin`` to ``end`` in parts: the first row's number, and the rows.

    A weight without axes is one row. The memory of a part is used again for the next one.

    Raises:
        SpecError: The weight is quantised, or its file ends too early.
        OSError: It cannot be read.
    """
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise SpecError(f"{entry.path}: holds {entry.dtype}, quantised weights, which do not train")
    row_shape = entry.shape[1:]
    row_bytes = prod(row_shape) * dtype.itemsize
    if begin >= end or not row_bytes:
        return
    at_once = max(piece // row_bytes, 1)
    memory = bytearray(min(at_once, end - begin) * row_bytes)
    with entry.path.open("rb", buffering=0) as file:
        file.seek(entry.begin + begin * row_bytes)
        for row in range(begin, end, at_once):
            count = min(at_once, end - row)
            part = memoryview(memory)[: count * row_bytes]
            _fill(file, part, entry)
            yield row, torch.frombuffer(part, dtype=dtype).reshape(count, *row_shape)


def num_rows(entry: Entry) -> int:
    """Return how many rows a weight has."""
    return entry.shape[0] if entry.shape else 1


def read_whole(entry: Entry) -> torch.Tensor:
    """Return the whole weight.

    Raises:
        SpecError: The weight is quantised, or its file ends too early.
        OSError: It cannot be read.
    """
    if entry.dtype not in DTYPES:
        raise SpecError(f"{entry.path}: holds {entry.dtype}, quantised weights, which do not train")
    whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    rows = whole if entry.shape else whole[None]
    for row, part in read_rows(entry, 0, num_rows(entry)):
        rows[row : row + len(part)].copy_(part)
    return whole


def _fill(file: object, part: memoryview, entry: Entry) -> None:
    while part:
        count = file.readinto(part)  # type: ignore[attr-defined]
        if not count:
            raise SpecError(f"{entry.path}: ends too early; copy the directory again")
        part = part[count:]
