"""Writes safetensors files weight by weight: no more than one of them is in memory."""

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from orchestrator.weightfiles.reading import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Planned:
    """A weight to write: its name, shape and type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """How many bytes it takes in the file."""
        return prod(self.shape) * self.dtype.itemsize


def share_out(weights: Sequence[Planned], *, most: int) -> list[list[Planned]]:
    """Return the weights in files of at most ``most`` bytes, in order; a larger one is alone."""
    files: list[list[Planned]] = []
    size = 0
    for weight in weights:
        if not files or size + weight.nbytes > most:
            files.append([])
            size = 0
        files[-1].append(weight)
        size += weight.nbytes
    return files


def file_names(count: int) -> list[str]:
    """Return what Hugging Face calls the files of a model.

    >>> file_names(1), file_names(2)[0]
    (['model.safetensors'], 'model-00001-of-00002.safetensors')
    """
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def write_file(
    path: Path,
    weights: Sequence[Planned],
    get: Callable[[str], torch.Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file durably; ``get`` gives the weights one after the other.

    Raises:
        ValueError: A weight is not what was planned.
        OSError: The disk refuses.
    """
    with path.open("xb") as file:
        file.write(_header(weights, metadata or {"format": "pt"}))
        for weight in weights:
            value = get(weight.name)
            if tuple(value.shape) != weight.shape:
                raise ValueError(f"{weight.name}: {weight.shape} was planned, not {value.shape}")
            value = value.to(weight.dtype).contiguous()
            file.write(value.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _header(weights: Sequence[Planned], metadata: Mapping[str, str]) -> bytes:
    items: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for weight in weights:
        end = begin + weight.nbytes
        items[weight.name] = {
            "dtype": _NAMES[weight.dtype],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(items, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that weights are aligned
    return struct.pack("<Q", len(text)) + text
