"""Exports a checkpoint. What it does, in order: look, check, write beside the target, rename."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from orchestrator.errors import SpecError
from orchestrator.export.adapter import CONFIG, WEIGHTS, adapter_config, adapter_weights
from orchestrator.export.folder import new_folder, write_mark
from orchestrator.export.skeleton import Skeleton, skeleton
from orchestrator.export.sources import Sources, open_sources
from orchestrator.export.texts import copy_tokenizer, write_config
from orchestrator.spec.train import TrainSpec
from orchestrator.weightfiles.finding import INDEX, read_header
from orchestrator.weightfiles.reading import DTYPES
from orchestrator.weightfiles.writing import Planned, file_names, share_out, write_file

DtypeName = Literal["auto", "bf16", "fp16", "fp32"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_TORCH = "pytorch_model.bin"
_SPARE = 32 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be exported, and how.

    Attributes:
        checkpoint: Folder of a complete checkpoint.
        step: Its step.
        target: Directory to write.
        dtype: Of the weights; auto is what the run computed in, and fp32 for adapters alone.
        form: safetensors, or torch for one file of torch.save.
        adapter: The adapters alone, in PEFT's layout.
        base: Where `model.path` lies now; None: where it was.
        force: Replace an earlier export.
        shard_bytes: Most bytes of a file.
    """

    checkpoint: Path
    step: int
    target: Path
    dtype: DtypeName = "auto"
    form: Literal["safetensors", "torch"] = "safetensors"
    adapter: bool = False
    base: str | None = None
    force: bool = False
    shard_bytes: int = 5 * 10**9


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    target: Path
    step: int
    kind: str
    dtype: str
    files: tuple[str, ...]
    nbytes: int
    parameters: int
    tokenizer: bool


def export(request: Request, spec: TrainSpec, *, say: Callable[[str], None]) -> Exported:
    """Write the export; return what was written.

    Raises:
        FsdpqError: It cannot be done; nothing is left behind.
        OSError: The same, in the file system's words.
    """
    _check_base(request, spec)
    model = skeleton(spec.model, base=request.base)
    sources = open_sources(request.checkpoint, spec, model, base=request.base)
    dtype = _dtype(request, spec)
    names = adapter_weights(sources) if request.adapter else {name: name for name in model.weights}
    weights = [_planned(name, source, sources, model, dtype) for name, source in names.items()]
    nbytes = sum(weight.nbytes for weight in weights)
    twice = 2 if request.form == "torch" else 1
    with new_folder(request.target, force=request.force, needed=twice * nbytes + _SPARE) as draft:
        tokenizer = copy_tokenizer(draft, _tokenizer_folder(request, spec))
        files = _write_weights(draft, request, weights, names, sources, say)
        exported = Exported(
            target=request.target,
            step=request.step,
            kind=_kind(request, sources),
            dtype=str(dtype).removeprefix("torch."),
            files=tuple(files),
            nbytes=nbytes,
            parameters=sum(int(np.prod(weight.shape)) for weight in weights),
            tokenizer=tokenizer,
        )
        _write_texts(draft, request, spec, model, sources, exported)
    return exported


def _check_base(request: Request, spec: TrainSpec) -> None:
    folder = _base_folder(request, spec)
    if folder is None or folder.is_dir():
        return
    if request.base:
        raise SpecError(f"--base: {folder} is no directory")
    raise SpecError(f"model.path: {folder} is no directory; say with --base where it is now")


def _dtype(request: Request, spec: TrainSpec) -> torch.dtype:
    if request.dtype != "auto":
        return _DTYPES[request.dtype]
    return _DTYPES["fp32" if request.adapter else spec.precision]


def _kind(request: Request, sources: Sources) -> str:
    if request.adapter:
        return "adapter"
    return "model" if sources.lora is None else "merged model"


def _base_folder(request: Request, spec: TrainSpec) -> Path | None:
    found = request.base or spec.model.path
    return Path(found) if found else None


def _tokenizer_folder(request: Request, spec: TrainSpec) -> Path | None:
    """Return where the tokenizer is that the data was read with, else the base's own."""
    named = getattr(spec.data, "tokenizer", "bytes")
    return _base_folder(request, spec) if named in ("bytes", "model") else Path(named)


def _planned(
    name: str, source: str, sources: Sources, model: Skeleton, dtype: torch.dtype
) -> Planned:
    """Return how a weight is written; what is no floating-point number keeps its type."""
    saved = sources.saved.weights.get(source)
    shape = saved[0] if saved else model.weights[source]
    kept = saved[1] if saved else DTYPES.get(sources.base[source].dtype, torch.float32)
    return Planned(name, shape, dtype if kept.is_floating_point else kept)


def _write_weights(
    draft: Path,
    request: Request,
    weights: Sequence[Planned],
    names: dict[str, str],
    sources: Sources,
    say: Callable[[str], None],
) -> list[str]:
    def get(name: str) -> torch.Tensor:
        source = names[name]
        return sources.saved.read(source) if request.adapter else sources.read(source)

    if request.form == "torch":
        return [_write_torch(draft, weights, get)]
    groups = [list(weights)] if request.adapter else share_out(weights, most=request.shard_bytes)
    files = [WEIGHTS] if request.adapter else file_names(len(groups))
    for number, (file, group) in enumerate(zip(files, groups, strict=True), start=1):
        write_file(draft / file, group, get)
        say(f"{file}: {number} of {len(files)}")
    if len(files) > 1:
        _write_index(draft, files, groups)
    return files


def _write_index(draft: Path, files: Sequence[str], groups: Sequence[Sequence[Planned]]) -> None:
    everything = [weight for group in groups for weight in group]
    index = {
        "metadata": {
            "total_size": sum(weight.nbytes for weight in everything),
            "total_parameters": sum(int(np.prod(weight.shape)) for weight in everything),
        },
        "weight_map": {
            weight.name: file for file, group in zip(files, groups, strict=True) for weight in group
        },
    }
    (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_torch(
    draft: Path, weights: Sequence[Planned], get: Callable[[str], torch.Tensor]
) -> str:
    """Write one file of torch.save. That wants all weights at once, so they are mapped."""
    pieces = draft / "pieces"
    write_file(pieces, weights, get)
    state = {}
    for name, entry in read_header(pieces).items():
        mapped = np.memmap(pieces, np.uint8, "c", offset=entry.begin, shape=(entry.length,))
        state[name] = torch.from_numpy(mapped).view(DTYPES[entry.dtype]).reshape(entry.shape)
    with (draft / _TORCH).open("xb") as file:
        torch.save(state, file)
    pieces.unlink()
    return _TORCH


def _write_texts(
    draft: Path,
    request: Request,
    spec: TrainSpec,
    model: Skeleton,
    sources: Sources,
    exported: Exported,
) -> None:
    base = _base_folder(request, spec)
    if request.adapter:
        if base is None:
            raise SpecError("--adapter: the model was drawn at random, so there is no base for it")
        config = adapter_config(sources, model, base=str(base))
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    else:
        write_config(draft, model, getattr(torch, exported.dtype), base=base)
    write_mark(
        draft,
        {
            "checkpoint": str(request.checkpoint),
            "step": request.step,
            "kind": exported.kind,
            "dtype": exported.dtype,
            "base": str(base) if base else None,
        },
    )
