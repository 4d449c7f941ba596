"""Refuses weights of `model.path` with NaN or infinity in them, before anything is built on them.

One such number makes every loss NaN, and from there it looks like a fault of the data or of the
learning rate. Files that a run which diverged has left are a common source.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.trainer.world import World

_SHOWN = 3


def check_finite(
    model: PreTrainedModel, folder: Path, world: World, *, wanted: Callable[[str], bool]
) -> None:
    """Refuse a model whose parameters, as read from ``folder``, are not all finite. Collective.

    Only those that are ``wanted`` by name are looked at; others have nothing in them yet.

    Raises:
        SpecError: Some are not; names them, on all ranks.
    """
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, _not_finite(model, wanted), group=world.checkpoint_group)
    names = sorted({name for part in found for name in part})
    if not names:
        return
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise SpecError(
        f"model.path: the weights in {folder} hold NaN or infinity, in"
        f" {', '.join(names[:_SHOWN])}{more}; nothing could be trained on them. Copy them again, or"
        " take those of an earlier step"
    )


@torch.no_grad()
def _not_finite(model: PreTrainedModel, wanted: Callable[[str], bool]) -> list[str]:
    """Return the names of the parameters of which this rank holds such a number."""
    return [
        name
        for name, value in model.named_parameters()
        if wanted(name) and not bool(_finite(value))
    ]


def _finite(value: torch.Tensor) -> torch.Tensor:
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.isfinite().all()
