"""Where the metrics go besides metrics.jsonl: `train.metrics`."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from orchestrator.keys.fields import Line, Strict

_Name = Annotated[Line, Field(min_length=1)]


class WandbSpec(Strict):
    """A run of Weights & Biases. Who logs in is never said here: `wandb login`, or WANDB_API_KEY.

    `offline` writes into the run directory, for `wandb sync`.
    """

    project: _Name
    entity: _Name | None = None
    mode: Literal["online", "offline"] = "online"


class MetricsSpec(Strict):
    """Copies of metrics.jsonl: event files for TensorBoard in the run directory, a W&B run."""

    tensorboard: StrictBool = False
    wandb: WandbSpec | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is any."""
        return self.tensorboard or self.wandb is not None
