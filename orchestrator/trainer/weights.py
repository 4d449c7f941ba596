"""The first values of a sharded model's parameters and buffers.

Initial weights must not depend on the number of ranks, or a run that comes back smaller could not
be compared with one that did not. So every rank draws each part of the model whole, from a
generator that is seeded by the run's seed and the part's name, and keeps its shard. That costs no
communication and the memory of one part at a time; drawing 8 billion numbers takes seconds on a
GPU and about a minute on a CPU, once in a run's life.
"""

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.trainer.anatomy import decoder_blocks


@torch.no_grad()
def fill(
    model: PreTrainedModel,
    template: PreTrainedModel,
    *,
    seed: int,
    buffers_only: bool,
    device: torch.device,
) -> None:
    """Give ``model`` its first weights, and the buffers that no checkpoint holds.

    `to_empty` leaves garbage in buffers such as the frequencies of rotary embeddings, and a model
    with garbage there trains, slightly wrong.

    Args:
        model: Sharded, with memory.
        template: The same model, whole, on the meta device. Its parts are given memory one after
            the other, initialised as Hugging Face does, copied from, and dropped again.
        seed: The run's.
        buffers_only: The weights come from elsewhere.
        device: Where they are drawn, wherever they are kept: other devices draw other numbers.

    Raises:
        SpecError: A module's buffers cannot be computed.
    """
    targets = {} if buffers_only else dict(model.named_parameters())  # a tied one stands here once
    for name, part in _parts(template):
        wanted = [key for key, _ in part.named_parameters() if f"{name}.{key}" in targets]
        if not wanted and not any(True for _ in part.buffers()):
            continue
        whole = _initialised(part, template, seed=seed, name=name, device=device)
        for key in wanted:
            _copy(targets[f"{name}.{key}"], whole.get_parameter(key))
        for key, buffer in whole.named_buffers():
            model.get_buffer(f"{name}.{key}").copy_(buffer)


def _parts(template: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield the decoder blocks, and of the rest each module that holds something itself.

    Blocks stay whole: some models scale a layer by what block it stands in.
    """
    blocks = decoder_blocks(template)
    yield from blocks.items()
    inside = {id(module) for block in blocks.values() for module in block.modules()}
    for name, module in template.named_modules():
        if id(module) in inside:
            continue
        if any(True for _ in module.parameters(recurse=False)) or any(
            True for _ in module.buffers(recurse=False)
        ):
            yield name, module


def _initialised(
    part: nn.Module, template: PreTrainedModel, *, seed: int, name: str, device: torch.device
) -> nn.Module:
    whole = copy.deepcopy(part).to_empty(device=device)
    _spoil(whole)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        whole.apply(template._init_weights)
    for key, module in whole.named_modules():
        if not _is_filled(module) and not _rebuild_buffers(module, template):
            raise SpecError(
                f"model: the buffers of {name}.{key} ({type(module).__name__}) cannot be computed"
            )
    return whole


def _copy(target: torch.Tensor, whole: torch.Tensor) -> None:
    if isinstance(target, DTensor):
        # src_data_rank=None: every rank has the whole already, so nothing needs to be sent.
        whole = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(whole)


def _spoil(whole: nn.Module) -> None:
    """Mark buffers, so that one that nobody fills is found."""
    for buffer in whole.buffers():
        if buffer.is_floating_point():
            buffer.fill_(float("nan"))


def _is_filled(module: nn.Module) -> bool:
    return all(
        buffer.is_floating_point() and not bool(buffer.isnan().any())
        for buffer in module.buffers(recurse=False)
    )


def _rebuild_buffers(module: nn.Module, template: PreTrainedModel) -> bool:
    """Take the buffers of a new module of the same kind; return whether that worked.

    transformers 5 fills buffers when it initialises a module; before, only a new module had them.
    """
    try:
        with torch.device("cpu"):
            new = type(module)(config=getattr(module, "config", template.config))
    except TypeError:
        return False
    for key, buffer in module.named_buffers(recurse=False):
        buffer.copy_(new.get_buffer(key))
    return True


def load_pretrained(model: PreTrainedModel, path: Path) -> None:
    """Fill the shards of ``model`` from the safetensors files in ``path``.

    Raises:
        SpecError: There are no such files, or they hold other weights than the model has.
    """
    if not any(path.glob("*.safetensors")):
        raise SpecError(f"model.path: {path} holds no *.safetensors files")
    state = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or model._tied_weights_keys or ())
    if model.config.get_text_config().tie_word_embeddings:
        state = {key: value for key, value in state.items() if key not in tied}
    try:
        load(state, storage_reader=HuggingFaceStorageReader(str(path)))
    except CheckpointException as problem:
        # Its text is a traceback for each rank; the last line says what it is about.
        last = str(problem).strip().splitlines()[-1]
        raise SpecError(
            f"model.path: the weights in {path} are not those of {type(model).__name__}: {last}"
        ) from problem
