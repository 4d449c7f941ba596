"""Where each weight of the exported model comes from: checkpoint, base, or both."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import CheckpointError, SpecError
from orchestrator.export.configuration import describe, difference
from orchestrator.export.saved import Saved, open_saved
from orchestrator.export.skeleton import Skeleton
from orchestrator.spec.train import LoraSpec, TrainSpec
from orchestrator.weightfiles.finding import Entry, find_weights, fingerprint
from orchestrator.weightfiles.reading import read_whole

_ADAPTER = ".lora_A.weight"


@dataclass(frozen=True, slots=True)
class Sources:
    """Reads the weights of a model.

    Attributes:
        saved: The checkpoint.
        base: The weights that it was trained upon, where the checkpoint leaves them out.
        lora: How adapters were trained; None: there are none.
    """

    saved: Saved
    base: dict[str, Entry]
    lora: LoraSpec | None

    @property
    def adapted(self) -> list[str]:
        """Names of the layers that have an adapter."""
        names = self.saved.weights
        return [name.removesuffix(_ADAPTER) for name in names if name.endswith(_ADAPTER)]

    def read(self, name: str) -> torch.Tensor:
        """Return a weight of the model, with its adapter in it.

        Raises:
            CheckpointError: The checkpoint does not read.
            SpecError: The base does not read.
            OSError: The same.
        """
        here = name in self.saved.weights
        value = self.saved.read(name) if here else read_whole(self.base[name])
        layer = name.removesuffix(".weight")
        if self.lora is None or f"{layer}{_ADAPTER}" not in self.saved.weights:
            return value
        low, high = (self.saved.read(f"{layer}.lora_{part}.weight") for part in "AB")
        return value.float() + self.lora.scale * (high.float() @ low.float())


def open_sources(
    folder: Path, spec: TrainSpec, model: Skeleton, *, base: str | None = None
) -> Sources:
    """Return where the weights of ``model`` are, once each of them is there.

    Raises:
        CheckpointError: The checkpoint does not read, or is of another model.
        SpecError: The weights that it was trained upon are gone, or others.
    """
    saved = open_saved(folder)
    told: dict[str, Any] = json.loads(saved.text("app.trains", "{}"))
    _check_config(told.get("config", {}), model, base or spec.model.path)
    entries = _base(Path(base or spec.model.path or ""), told) if told.get("base") else {}
    lora = LoraSpec.model_validate(told["lora"]) if told.get("lora") else None
    sources = Sources(saved, entries, lora)
    for name, shape in model.weights.items():
        found = saved.weights[name][0] if name in saved.weights else None
        if found is None and name in entries:
            found = entries[name].shape
        if found != shape:
            what = f"as {list(found)}" if found else "not at all"
            raise CheckpointError(
                f"{folder}: has {name} {what}, and {model.kind} has it as {list(shape)}"
            )
    return sources


def _check_config(saved: dict[str, Any], model: Skeleton, path: str | None) -> None:
    """Refuse a configuration that the run was not trained with; older checkpoints hold none.

    Raises:
        SpecError: Says what differs.
    """
    if found := difference(saved, describe(model.config)):
        where = f"{path}/config.json" if path else "the configuration of the model"
        raise SpecError(
            f"{where} is not what the run was trained with: {found}. Bring the old one back, or say"
            " with --base where it is; with model.config, use the transformers of the run"
        )


def _base(folder: Path, told: dict[str, Any]) -> dict[str, Entry]:
    """Return the weights of the base.

    Raises:
        SpecError: They are gone, or not those that the run was trained upon.
    """
    try:
        same = fingerprint(folder) == told["base"]
    except (OSError, SpecError) as problem:
        raise SpecError(
            f"the run was trained upon the weights of model.path, which its checkpoints leave out:"
            f" {problem}. Say with --base where they are now"
        ) from None
    if not same:
        raise SpecError(
            f"{folder} holds other weights than those that the run was trained upon; say with"
            " --base where they are now"
        )
    return find_weights(folder)
