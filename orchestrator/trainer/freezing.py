"""Which parameters train."""

from fnmatch import fnmatchcase

import torch
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec


def freeze(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Freeze what `freeze` names, or everything where adapters are to be added.

    Raises:
        SpecError: A pattern names nothing, or nothing is left to train.
    """
    if spec.lora is not None:
        model.requires_grad_(False)
        return
    for pattern in spec.freeze:
        found = [p for name, p in _all_names(model) if fnmatchcase(name, pattern)]
        if not found:
            first = ", ".join(name for name, _ in _all_names(model)[:3])
            raise SpecError(
                f"freeze: {pattern} is no name of a parameter; names are such as {first}"
            )
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SpecError("freeze: nothing is left to train; name fewer parameters")


def _all_names(model: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    """Return all names; a parameter that is shared (a tied head) has several."""
    return list(model.named_parameters(remove_duplicate=False))


def frozen_names(model: torch.nn.Module) -> set[str]:
    """Return the names of what does not train."""
    return {
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if not parameter.requires_grad
    }


def leaves_out_frozen(model: torch.nn.Module, spec: TrainSpec) -> bool:
    """Return whether checkpoints leave out what is frozen, as it can be read from `model.path`."""
    return spec.model.path is not None and bool(frozen_names(model))
