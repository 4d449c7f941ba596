"""What a model does to its logits after the head, found by asking the model itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast


@dataclass(frozen=True, slots=True)
class Adjust:
    """What a model does to its logits after the head.

    Attributes:
        factor: They are multiplied by it (Cohere, Granite).
        cap: Then they are squeezed into (-cap, cap) by a tanh (Gemma); None: they are not.
    """

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits that count."""
        if self.factor != 1.0:
            logits = logits * self.factor
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def adjust_of(model: PreTrainedModel) -> Adjust:
    """Return what the configuration of ``model`` says is done to its logits."""
    config = model.config.get_text_config()
    factor = getattr(config, "logit_scale", None) or 1.0
    divisor = getattr(config, "logits_scaling", None) or 1.0
    return Adjust(factor / divisor, getattr(config, "final_logit_softcapping", None))


def why_whole(model: PreTrainedModel) -> str:
    """Return why the head of ``model`` cannot be applied to its rows in parts, or nothing.

    Called before sharding: a model without memory will do.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return f"the head of this model is no plain linear layer but {type(head).__name__}"
    if not _adjusts_as_said(model, head):
        return f"{type(model).__name__} does more to its logits than its configuration says"
    return ""


@torch.no_grad()
def _adjusts_as_said(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Send numbers through the model's own forward, with nothing before and in place of the head.

    What comes out is what the model does to its logits.
    """
    numbers = torch.linspace(-90.0, 90.0, 16, device="cpu").reshape(1, 2, 8)

    def base_forward(*_: Any, **__: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=numbers)

    with _replaced(model.base_model, base_forward), _replaced(head, lambda hidden: hidden):
        try:
            found = model(input_ids=torch.zeros((1, 2), dtype=torch.long)).logits
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return False  # it wants more of its parts than there is
    return found.shape == numbers.shape and torch.allclose(found, adjust_of(model)(numbers))


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del vars(module)["forward"]
