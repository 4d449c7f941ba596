"""Fills the shards of a model straight from the safetensors files of a directory.

Each rank reads the rows that it keeps, a piece at a time, so that no rank ever holds a whole
weight, and all ranks together read each byte once (once for each replica with HSDP).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.trainer.lora import is_adapter
from orchestrator.weightfiles.finding import FLOATS, Entry, find_weights
from orchestrator.weightfiles.reading import read_rows

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read by this rank, and in how long."""

    nbytes: int
    seconds: float


@torch.no_grad()
def load_pretrained(
    model: PreTrainedModel, folder: Path, *, wanted: Callable[[str], bool] = lambda name: True
) -> Loaded:
    """Fill the parameters of ``model`` that are ``wanted`` by name, and its persistent buffers.

    Raises:
        SpecError: There are no such files, or they hold other weights than the model has.
    """
    began = time.perf_counter()
    try:
        entries = find_weights(folder)
    except SpecError as problem:
        raise SpecError(f"model.path: {problem}") from None
    chosen = [
        (target, entry)
        for name, target, entry in _matched(model, entries, folder=folder)
        if wanted(name)
    ]
    # As they lie on disk: a shared file system reads ahead.
    chosen.sort(key=lambda pair: (pair[1].path, pair[1].begin))
    try:
        nbytes = sum(_load(target, entry) for target, entry in chosen)
    except OSError as problem:
        raise SpecError(f"model.path: {folder} cannot be read: {problem}") from None
    return Loaded(nbytes, time.perf_counter() - began)


def _matched(
    model: PreTrainedModel, entries: dict[str, Entry], *, folder: Path
) -> list[tuple[str, torch.Tensor, Entry]]:
    """Return what is to be filled, by its first name, and from where.

    Raises:
        SpecError: Weights are missing or of another shape; names some.
    """
    found, missing, other = [], [], []
    for names, target in _parameters(model):
        entry = _entry(names, entries, prefix=model.base_model_prefix)
        if entry is None:
            missing.append(names[0])
        elif entry.shape != tuple(target.shape):
            other.append(f"{names[0]} is {list(target.shape)}, in the files {list(entry.shape)}")
        elif target.is_floating_point() and entry.dtype not in FLOATS:
            other.append(
                f"{names[0]} is {entry.dtype} in the files, and quantised ones do not train"
            )
        else:
            found.append((names[0], target, entry))
    if missing or other:
        problems = [f"they lack {name}" for name in missing] + other
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise SpecError(
            f"model.path: the weights in {folder} are not those of"
            f" {type(model).__name__.removeprefix('FSDP')}:"
            f" {'; '.join(problems[:_SHOWN])}{more}. They hold"
            f" {', '.join([*entries][:_SHOWN])}, ... Weights that transformers has to convert while"
            " it loads (experts one by one, other names) are not read"
        )
    return found + [
        (name, buffer, entries[name]) for name, buffer in _buffers(model) if name in entries
    ]


def _parameters(model: nn.Module) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yield each parameter that files can hold with all its names; adapters are not among them."""
    names: dict[int, list[str]] = {}
    parameters: dict[int, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not is_adapter(name):
            names.setdefault(id(parameter), []).append(name)
            parameters[id(parameter)] = parameter
    for key, target in parameters.items():
        yield names[key], target


def _buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    persistent = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in persistent:
            yield name, buffer


def _entry(names: list[str], entries: dict[str, Entry], *, prefix: str) -> Entry | None:
    """Return where a parameter lies; files of a model without its head lack the ``prefix``."""
    shorter = [name.removeprefix(f"{prefix}.") for name in names]
    return next((entries[name] for name in (*names, *shorter) if name in entries), None)


def _load(target: torch.Tensor, entry: Entry) -> int:
    """Fill this rank's rows of ``target``; return how many bytes were read."""
    local: torch.Tensor = target
    first = 0
    if isinstance(target, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            target.shape, target.device_mesh, target.placements
        )
        local = target.to_local()
        assert tuple(shape[1:]) == tuple(target.shape[1:]), "sharded along rows alone"
        first = offset[0] if offset else 0
    rows = local if local.dim() else local[None]
    nbytes = 0
    for row, part in read_rows(entry, first, first + len(rows)):
        # The memory of the part is used again, so the copy to a GPU must not lag behind.
        rows[row - first : row - first + len(part)].copy_(part)
        nbytes += part.nbytes
    return nbytes
