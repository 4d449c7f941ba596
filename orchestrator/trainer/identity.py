"""What trains, how, and on top of what: written into each checkpoint, compared before a load.

Another configuration of the model gives no error, only another model under the same weights. A
checkpoint of other adapters, or of another frozen part, would lose optimizer states at best. One
that leaves out the frozen weights also needs the very weights that it was trained upon.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import PreTrainedModel

from orchestrator.errors import CheckpointError, SpecError
from orchestrator.export.configuration import describe, difference
from orchestrator.export.saved import open_saved
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.freezing import frozen_names, leaves_out_frozen
from orchestrator.trainer.settled import changed_setting, settings
from orchestrator.trainer.world import World
from orchestrator.weightfiles.finding import fingerprint

# Of older versions whose whole model trains; so did all runs before there was anything else.
WHOLE = "{}"
_KEY = "app.trains"


def identify(model: PreTrainedModel, spec: TrainSpec, world: World) -> str:
    """Return what a checkpoint says of itself, as JSON. Collective if frozen weights are left out.

    Raises:
        SpecError: The weights that it leaves out cannot be read.
    """
    shared = {"config": describe(model.config), "settings": settings(spec)}
    if not frozen_names(model):
        return json.dumps(shared, sort_keys=True)
    trained = sorted(name for name, p in model.named_parameters() if p.requires_grad)
    digest = hashlib.blake2b("\n".join(trained).encode(), digest_size=8).hexdigest()
    base = _base(spec, world) if leaves_out_frozen(model, spec) else ""
    lora = None if spec.lora is None else spec.lora.model_dump(mode="json")
    told = {
        "lora": lora,
        "trained": digest,
        "count": len(trained),
        "base": base,
        **shared,
    }
    return json.dumps(told, sort_keys=True)


def saved_identity(
    folder: Path, reader: Callable[[Path], FileSystemReader] = FileSystemReader
) -> str:
    """Return what the checkpoint in ``folder`` says of itself; empty if it does not read.

    Loading will find out that, and take an older one.
    """
    try:
        text = open_saved(folder, reader).text(_KEY, WHOLE)
        known = isinstance(json.loads(text), dict)
    except (CheckpointError, ValueError):
        return ""
    return text if known else ""


def check_identity(saved: str, now: str) -> None:
    """Refuse to load what was saved by another kind of training.

    Raises:
        SpecError: Says what differs, and what to do.
    """
    before, after = json.loads(saved), json.loads(now)
    if what := _difference(before, after):
        raise SpecError(f"{what}. Bring the old ones back, or start a new run")


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return what differs, in words; empty if nothing does."""
    if found := difference(before.get("config", {}), after.get("config", {})):
        return (
            "model: the configuration (config.json, or model.config and the version of"
            f" transformers) is not what this run began with: {found}"
        )
    if before.get("lora") != after.get("lora"):
        return f"lora: {_lora(before.get('lora'), after.get('lora'))}"
    if before.get("trained") != after.get("trained"):
        then, now = _counts(before, after)
        return (
            f"freeze: in the checkpoint {then} train, and now {now} would, so"
            " the optimizer's state does not fit"
        )
    if before.get("base", "") == after.get("base", ""):
        return changed_setting(before.get("settings", {}), after.get("settings", {}))
    if before.get("base") and after.get("base"):
        return (
            "model.path: the weights there are not those that this run began with, and its"
            " checkpoints hold only what was trained on top of them"
        )
    return "model: the run began with model.path and now has model.config, or the reverse"


def _base(spec: TrainSpec, world: World) -> str:
    """Return the fingerprint of the weights in `model.path`, as rank 0 sees them."""
    found: list[Any] = [""]
    if world.rank == 0:
        try:
            found = [fingerprint(Path(spec.model.path or ""))]
        except (OSError, SpecError) as problem:
            found = [SpecError(f"model.path: {problem}")]
    dist.broadcast_object_list(found, src=0, group=world.checkpoint_group)
    if isinstance(found[0], SpecError):
        raise found[0]
    return str(found[0])


def _lora(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """Return what differs in two adapters, or that one side has none."""
    if not before or not after:
        has, asks = ("some" if one else "none" for one in (before, after))
        return f"the checkpoint has {has}, and the job asks for {asks}"
    return ", ".join(
        f"{key} was {_given(before.get(key))} and is {_given(after[key])}"
        for key in after
        if before.get(key) != after[key]
    )


def _given(value: Any) -> str:
    return "left out" if value is None else str(value)


def _counts(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    """Return in words how many parameters trained, and how many would now."""
    words = [f"{told['count']}" if "count" in told else "all" for told in (before, after)]
    other = " other" if words[0] == words[1] else ""
    return f"{words[0]} parameters", f"{words[1]}{other} parameters"
