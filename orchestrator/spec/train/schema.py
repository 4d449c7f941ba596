"""The `train:` part of a job file: what fsdpq's own trainer needs to know.

The trainer reads the same model back from `train.json` in the run directory, so nothing here may
depend on the machine it is read on. Torch is not imported: a login node need not have it.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator

from orchestrator.errors import SpecError
from orchestrator.keys.counts import Count, Seed, WholeNumber
from orchestrator.keys.fields import validate
from orchestrator.spec.train.checkpoint import CheckpointSpec
from orchestrator.spec.train.data import DataSpec, EvalSpec
from orchestrator.spec.train.mesh import Mesh, MeshSpec
from orchestrator.spec.train.metrics import MetricsSpec
from orchestrator.spec.train.model import ModelSpec
from orchestrator.spec.train.numbers import Beta, Fraction, PositiveFloat
from orchestrator.spec.train.parallel import ParallelSpec, SafetySpec
from orchestrator.spec.train.timeouts import TimeoutSpec
from orchestrator.spec.train.tuning import TuningSpec


class TrainSpec(ParallelSpec, SafetySpec, TuningSpec):
    """What the reference trainer does."""

    model: ModelSpec
    data: DataSpec
    eval: EvalSpec | None = None
    steps: Count
    global_batch: Count
    micro_batch: Count = 1
    seed: Seed = 0
    lr: PositiveFloat = 3e-4
    warmup_steps: WholeNumber = 0
    lr_schedule: Literal["cosine", "constant", "linear"] = "cosine"
    min_lr_ratio: Fraction = 0.1
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    clip_norm: PositiveFloat | None = 1.0
    mesh: Mesh = MeshSpec()
    reshard_after_forward: StrictBool = True
    # "unsharded" saves a reduce-scatter per micro-batch and costs the whole gradient in fp32 on
    # each rank, 32 GB for 8 billion parameters.
    accumulate: Literal["sharded", "unsharded"] = "sharded"
    deterministic: StrictBool = True
    checkpoint: CheckpointSpec = CheckpointSpec()
    timeouts_s: TimeoutSpec = TimeoutSpec()
    metrics: MetricsSpec = MetricsSpec()

    @model_validator(mode="after")
    def _tokenizer_is_there(self) -> "TrainSpec":
        if self.data.tokenizer == "model" and self.model.path is None:
            raise ValueError("data.tokenizer: model needs model.path, where it is; name a folder")
        return self

    @property
    def tokenizer(self) -> str:
        """`bytes`, or the path of the tokenizer."""
        path = self.model.path
        return path if self.data.tokenizer == "model" and path else self.data.tokenizer

    @property
    def read_paths(self) -> tuple[str, ...]:
        """All files, folders and patterns of data that the trainer reads."""
        inner = self.eval.patterns if self.eval is not None else ()
        named = () if self.data.tokenizer in ("bytes", "model") else (f"{self.data.tokenizer}/",)
        return (*self.data.patterns, *inner, *named)

    @model_validator(mode="after")
    def _batches_fit(self) -> "TrainSpec":
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of micro_batch"
                f" {self.micro_batch}; both count sequences"
            )
        return self

    def relative_to(self, base: Path) -> "TrainSpec":
        """Return the same with paths made absolute, as seen from the folder ``base``."""

        def full(text: str) -> str:
            return str((base / Path(text).expanduser()).absolute())

        changes: dict[str, Any] = {"data": self.data.model_copy(update=self.data.mapped(full))}
        if self.eval is not None:
            changes["eval"] = self.eval.model_copy(update=self.eval.mapped(full))
        if self.model.path is not None:
            changes["model"] = self.model.model_copy(update={"path": full(self.model.path)})
        return self.model_copy(update=changes)


def load_train(path: Path) -> TrainSpec:
    """Return the trainer's configuration in the JSON file ``path``.

    Raises:
        SpecError: The file is missing, no JSON, or holds something the trainer cannot use.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as problem:
        raise SpecError(f"{path}: cannot be read: {problem}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: must hold a JSON object")
    return validate(TrainSpec, data, where=path, error=SpecError)


def with_overrides(spec: TrainSpec, path: Path) -> TrainSpec:
    """Return ``spec`` with what the launcher has changed since in the JSON file ``path``.

    Raises:
        SpecError: The file is there and does not read.
    """
    try:
        changes = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return spec
    except (OSError, ValueError) as problem:
        raise SpecError(f"{path}: cannot be read: {problem}") from None
    known = {key: value for key, value in dict(changes).items() if key == "micro_batch"}
    return validate(TrainSpec, {**spec.model_dump(), **known}, where=path, error=SpecError)
