"""What tells whether a checkpoint holds, bit by bit, what the training had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.trainer.training import Training


def loaded(training: Training, path: Path) -> list[int]:
    """Return the fingerprints of a checkpoint, loaded with DCP alone."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    model, optim = get_state_dict(training.state.model, training.state.optimizer)
    tensors = {"model": model, "optim": {"state": optim["state"]}}
    with torch.no_grad():
        empty = _map(lambda tensor: torch.full_like(tensor, 0), tensors)
    load({"app": empty}, checkpoint_id=path, process_group=training.world.checkpoint_group)
    return _prints_of(empty)


def prints(training: Training) -> list[int]:
    """Return the fingerprints of this rank's part of the state."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optim = get_state_dict(training.state.model, training.state.optimizer)
    return _prints_of({"model": model, "optim": {"state": optim["state"]}})


def _prints_of(tensors: dict[str, Any]) -> list[int]:
    """Return an exact sum over the bits of each of this rank's tensors."""
    import torch
    from torch.distributed.tensor import DTensor

    found: list[Any] = []

    def note(tensor: Any) -> Any:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        bits = local.detach().contiguous().flatten().view(torch.uint8).view(torch.int32)
        weights = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int32)
        found.append((bits * weights).sum(dtype=torch.int64))  # the order counts, too
        return tensor

    _map(note, tensors)
    return [int(value) for value in found]


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    return {key: _map(function, item) for key, item in value.items()}
