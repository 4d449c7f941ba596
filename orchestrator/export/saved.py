"""Reads single values of a DCP checkpoint, in one process and without a process group."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from orchestrator.errors import CheckpointError

# CheckpointException is a BaseException; the rest is what DCP lets through for damaged files.
PROBLEMS = (
    CheckpointException,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    UnpicklingError,
)
_MODEL = "app.model."


@dataclass(frozen=True, slots=True)
class Saved:
    """The weights that a checkpoint holds.

    Attributes:
        folder: Of the checkpoint.
        weights: Name in the model to shape and type, as they were saved.
        keys: All that there is in it.
        reader: Makes what reads the folder.
    """

    folder: Path
    weights: dict[str, tuple[tuple[int, ...], torch.dtype]]
    keys: frozenset[str]
    reader: Callable[[Path], FileSystemReader] = FileSystemReader

    def read(self, name: str) -> torch.Tensor:
        """Return a weight, put together from the shards of all ranks.

        Raises:
            CheckpointError: It does not read.
        """
        shape, dtype = self.weights[name]
        found = torch.empty(shape, dtype=dtype)
        read(self.folder, {_MODEL + name: found}, self.reader)
        return found

    def text(self, key: str, default: str) -> str:
        """Return a text of the state; ``default`` if it has none.

        Raises:
            CheckpointError: It does not read.
        """
        if key not in self.keys:
            return default
        return str(read(self.folder, {key: default}, self.reader)[key])


def open_saved(
    folder: Path, reader: Callable[[Path], FileSystemReader] = FileSystemReader
) -> Saved:
    """Return what the checkpoint in ``folder`` holds, as the ``reader`` for it reads it.

    Raises:
        CheckpointError: It does not read, or no reference trainer has written it.
    """
    try:
        items = reader(folder).read_metadata().state_dict_metadata
    except PROBLEMS as problem:
        raise CheckpointError(f"{folder}: cannot be read: {problem}") from None
    weights = {
        key.removeprefix(_MODEL): (tuple(item.size), item.properties.dtype)
        for key, item in items.items()
        if key.startswith(_MODEL) and isinstance(item, TensorStorageMetadata)
    }
    if not weights:
        raise CheckpointError(f"{folder}: holds no weights of the reference trainer")
    return Saved(folder, weights, frozenset(items), reader)


def read(
    folder: Path,
    wanted: dict[str, Any],
    reader: Callable[[Path], FileSystemReader] = FileSystemReader,
) -> dict[str, Any]:
    """Fill ``wanted``, and return it.

    Raises:
        CheckpointError: It does not read.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is")
            load(wanted, storage_reader=reader(folder), no_dist=True)
    except PROBLEMS as problem:
        last = (str(problem).strip() or type(problem).__name__).splitlines()[-1]
        raise CheckpointError(
            f"{folder}: cannot be read: {last}. A run that goes on deletes its older checkpoints;"
            " name a newer one"
        ) from None
    return wanted
