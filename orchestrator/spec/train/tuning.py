"""What of the model trains: keys of `train`."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.keys.counts import Count
from orchestrator.keys.fields import Line, Strict, no_control, not_empty
from orchestrator.spec.train.numbers import PositiveFloat


def _targets(value: object) -> object:
    """Return what names layers; errors inside a union would name pydantic's own parts of it."""
    if value == "all-linear":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        for one in value:
            not_empty(no_control(one))
        return value
    raise ValueError("must be all-linear, or a list of names such as [q_proj, v_proj]")


class LoraSpec(Strict):
    """Low-rank adapters beside linear layers of the decoder blocks; the model itself is frozen.

    A layer gives `W x + alpha / rank * B A dropout(x)`. `alpha` left out is twice the rank.
    `target_modules` are last parts of names, as PEFT has them; `all-linear` is every linear layer
    of the decoder blocks.
    """

    rank: Count = 16
    alpha: PositiveFloat | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[
        Literal["all-linear"] | tuple[Line, ...], BeforeValidator(_targets)
    ] = "all-linear"

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.effective_alpha / self.rank

    @property
    def effective_alpha(self) -> float:
        """`alpha`, or what it is if left out."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


class TuningSpec(Strict):
    """What of the model trains: all of it, all but what `freeze` names, or adapters alone.

    `freeze` are patterns (`*`, `?`, `[...]`) for whole names of parameters, such as
    `model.embed_tokens.*` or `*.layers.[0-9].*`.
    """

    freeze: tuple[Line, ...] = ()
    lora: LoraSpec | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.freeze and self.lora is not None:
            raise ValueError(
                "give either freeze or lora: with lora all but the adapters is frozen anyway"
            )
        return self
