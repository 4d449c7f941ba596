"""What a model consists of, asked of Hugging Face's own class without memory for its weights."""

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PretrainedConfig
from transformers.utils import logging

from orchestrator.export.configuration import on_meta, read_config
from orchestrator.spec.train import ModelSpec


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The names and shapes of a model.

    Attributes:
        kind: Name of its class.
        config: Its configuration.
        weights: Parameters and persistent buffers by name; a shared one by its first name alone,
            as Hugging Face saves it.
        linear: Names of its linear layers.
    """

    kind: str
    config: Any
    weights: dict[str, tuple[int, ...]]
    linear: frozenset[str]


def skeleton(spec: ModelSpec, *, base: str | None = None) -> Skeleton:
    """Return what the model of ``spec`` consists of; ``base`` is where `path` lies now.

    Raises:
        SpecError: Hugging Face does not know it, or its directory is gone.
    """
    logging.set_verbosity_error()
    config = read_config(spec, base=base)
    model = on_meta(config, "eager")
    persistent = model.state_dict().keys()
    named = [*model.named_parameters(), *model.named_buffers()]
    return Skeleton(
        kind=type(model).__name__,
        config=_clean(config, type(model).__name__),
        weights={name: tuple(item.shape) for name, item in named if name in persistent},
        linear=frozenset(n for n, part in model.named_modules() if isinstance(part, nn.Linear)),
    )


def _clean(config: PretrainedConfig, kind: str) -> PretrainedConfig:
    config.architectures = [kind]
    return config
