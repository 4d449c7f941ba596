"""The first values of a sharded model's parameters and buffers.

Initial weights must not depend on the number of ranks, or a run that comes back smaller could not
be compared with one that did not. So every rank draws each whole parameter from a generator that
is seeded by the run's seed and the module's name, one module at a time, and keeps its shard. That
costs no communication and at most one module's memory; drawing 8 billion numbers takes seconds on
a GPU and about a minute on a CPU, once in a run's life.
"""

import copy
import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from orchestrator.errors import SpecError


@torch.no_grad()
def initialise(model: PreTrainedModel, template: PreTrainedModel, *, seed: int) -> None:
    """Give ``model`` its first weights.

    Args:
        model: Sharded, with memory.
        template: The same model, whole, on the meta device; its modules are given memory one by
            one, initialised as Hugging Face does, and dropped again.
        seed: The run's.
    """
    targets = dict(model.named_parameters())  # a tied parameter stands here once
    device = next(iter(targets.values())).device
    for name, module in template.named_modules():
        own = [key for key, _ in module.named_parameters(prefix=name, recurse=False)]
        wanted = [key for key in own if key in targets]
        if not wanted:
            continue
        whole = _initialised(module, template, seed=seed, name=name, device=device)
        for key in wanted:
            _copy(targets[key], whole.get_parameter(key.removeprefix(f"{name}.")))


def _initialised(
    module: nn.Module, template: PreTrainedModel, *, seed: int, name: str, device: torch.device
) -> nn.Module:
    whole = copy.deepcopy(module).to_empty(device=device)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        template._init_weights(whole)
    return whole


def _copy(target: torch.Tensor, whole: torch.Tensor) -> None:
    if isinstance(target, DTensor):
        # src_data_rank=None: every rank has the whole already, so nothing needs to be sent.
        whole = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(whole)


@torch.no_grad()
def fill_buffers(model: PreTrainedModel) -> None:
    """Compute the buffers that no checkpoint holds, such as the frequencies of rotary embeddings.

    `to_empty` leaves garbage in them, and a model with garbage there trains, slightly wrong.

    Raises:
        SpecError: A module's buffers cannot be computed.
    """
    for name, module in model.named_modules():
        if not any(True for _ in module.buffers(recurse=False)):
            continue
        _spoil(module)
        if not _refill(module, model):
            raise SpecError(
                f"model: the buffers of {name} ({type(module).__name__}) cannot be computed anew"
            )


def _refill(module: nn.Module, model: PreTrainedModel) -> bool:
    """Fill a module's buffers; return whether that worked.

    transformers 5 refills them when it initialises a module; before, only a new module had them.
    """
    model._init_weights(module)
    if not _is_spoilt(module):
        return True
    try:
        with torch.device("cpu"):
            fresh = type(module)(config=getattr(module, "config", model.config))
    except TypeError:
        return False
    for key, buffer in module.named_buffers(recurse=False):
        buffer.copy_(fresh.get_buffer(key))
    return not _is_spoilt(module)


def _spoil(module: nn.Module) -> None:
    for buffer in module.buffers(recurse=False):
        if buffer.is_floating_point():
            buffer.fill_(float("nan"))


def _is_spoilt(module: nn.Module) -> bool:
    return any(
        not buffer.is_floating_point() or bool(buffer.isnan().any())
        for buffer in module.buffers(recurse=False)
    )


def load_pretrained(model: PreTrainedModel, path: Path) -> None:
    """Fill the shards of ``model`` from the safetensors files in ``path``.

    Raises:
        SpecError: There are no such files.
    """
    if not any(path.glob("*.safetensors")):
        raise SpecError(f"model.path: {path} holds no *.safetensors files")
    state = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or model._tied_weights_keys or ())
    if model.config.get_text_config().tie_word_embeddings:
        state = {key: value for key, value in state.items() if key not in tied}
    load(state, storage_reader=HuggingFaceStorageReader(str(path)))
