"""The first values of a sharded model's parameters and buffers.

Initial weights must not depend on the number of ranks, or a run that comes back smaller could not
be compared with one that did not. So every rank draws each part of the model whole, from a
generator that is seeded by the run's seed and the part's name, and keeps its shard. That costs no
communication and the memory of one part at a time; drawing 8 billion numbers takes seconds on a
GPU and about a minute on a CPU, once in a run's life.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.trainer.anatomy import decoder_blocks
from orchestrator.trainer.lora import reset_adapters


@torch.no_grad()
def fill(
    model: PreTrainedModel,
    template: PreTrainedModel,
    *,
    seed: int,
    draw: Callable[[str], bool],
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
        draw: Which parameters, by name, get their first weights; others come from elsewhere.
        device: Where they are drawn, wherever they are kept: other devices draw other numbers.

    Raises:
        SpecError: A module's buffers cannot be computed.
    """
    # A tied one stands here once.
    targets = {name: p for name, p in model.named_parameters() if draw(name)}
    for name, part in _parts(template):
        wanted = [key for key, _ in part.named_parameters() if f"{name}.{key}" in targets]
        if not wanted and not any(True for _ in part.buffers()):
            continue
        part = _with_memory(part, set(wanted), device)
        whole = _initialised(part, template, seed=seed, name=name)
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


def _with_memory(part: nn.Module, wanted: set[str], device: torch.device) -> nn.Module:
    """Return a copy of ``part`` whose buffers and ``wanted`` parameters have memory."""
    whole = copy.deepcopy(part)
    for prefix, module in whole.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if f"{prefix}.{key}".removeprefix(".") in wanted:
                setattr(module, key, nn.Parameter(torch.empty_like(parameter, device=device)))
        for key, buffer in module.named_buffers(recurse=False):
            setattr(module, key, torch.empty_like(buffer, device=device))
    return whole


def _initialised(whole: nn.Module, template: PreTrainedModel, *, seed: int, name: str) -> nn.Module:
    _spoil(whole)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    gpus = {t.device for t in (*whole.parameters(), *whole.buffers()) if t.is_cuda}
    with torch.random.fork_rng(devices=list(gpus)):
        torch.manual_seed(int.from_bytes(digest, "little") >> 1)
        whole.apply(template._init_weights)
        reset_adapters(whole)
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
