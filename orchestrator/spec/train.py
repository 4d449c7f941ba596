"""The `train:` part of a job file: what fsdpq's own trainer needs to know.

The trainer reads the same model back from `train.json` in the run directory, so nothing here may
depend on the machine it is read on. Torch is not imported: a login node need not have it.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.checkpoint.interval import MAX_INTERVAL_S, MTBF_S
from orchestrator.errors import SpecError
from orchestrator.fields import Line, Strict, validate

Count = Annotated[int, Field(ge=1, strict=True)]
WholeNumber = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelSpec(Strict):
    """Which Hugging Face causal language model: a configuration, or a folder with weights."""

    config: dict[str, Any] | None = None
    path: Line | None = None
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSpec":
        if (self.config is None) == (self.path is None):
            raise ValueError(
                "give either `config:` (a Hugging Face configuration, initialised from `seed`) or"
                " `path:` (a local directory with config.json and *.safetensors), and not both"
            )
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("config.model_type is required, such as llama")
        return self


class DataSpec(Strict):
    """Which text, cut into which length. Tokens are bytes (0 to 255), so no tokenizer is needed."""

    text_files: Annotated[tuple[Line, ...], Field(min_length=1)]
    seq_len: Annotated[int, Field(ge=2, strict=True)]


def _copies(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number of copies, 1 or more, or auto")


def _named_mesh(value: object) -> object:
    """Return the mesh that a word stands for: fsdp shards over all ranks, hsdp over a node."""
    if not isinstance(value, str):
        return value
    if value not in ("fsdp", "hsdp"):
        raise ValueError("must be fsdp, hsdp, or sizes such as {replicate: 2, shard: 8}")
    return {"replicate": "auto"} if value == "hsdp" else {}


class MeshSpec(Strict):
    """How ranks share the parameters: `replicate` copies, each sharded over `shard` ranks.

    `shard` left out means all ranks that are left, and `replicate: auto` as many copies as there
    are ranks for. Only sharding lowers the memory per rank. The ranks of a shard group follow one
    another, so a group of as many ranks as a node has GPUs is one node.
    """

    replicate: Annotated[int | Literal["auto"], BeforeValidator(_copies)] = 1
    shard: Count | None = None


def _every_steps(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number of steps, 1 or more, or auto")


class CheckpointSpec(Strict):
    """When checkpoints are written, which are kept, and how hard a resume looks at them.

    Each rank writes ``writers`` files at once. `mtbf_s` and `max_interval_s` are for
    `every_steps: auto`: how many seconds the job is expected to run between ends that lose work
    (kills, failures, notices too late for a save), and how many there may be between two saves.
    """

    every_steps: Annotated[int | Literal["auto"], BeforeValidator(_every_steps)] = 500
    mtbf_s: PositiveFloat = MTBF_S
    max_interval_s: PositiveFloat = MAX_INTERVAL_S
    # Two at least: the newest may turn out to be damaged, and then its elder is all there is.
    keep_last: Annotated[int, Field(ge=2, strict=True)] = 2
    keep_every: Count | None = None
    writers: Annotated[int, Field(ge=1, le=64, strict=True)] = 4
    resume: Literal["auto", "required"] = "auto"
    verify: Literal["full", "size"] = "full"


class TimeoutSpec(Strict):
    """How long ranks wait for one another, in seconds, before the attempt fails.

    `step` starts to count after the first step, which may compile and load; `init` holds until
    then. `term_vote` holds after a SIGTERM, when the end is seconds away.

    They are the second net. The first one are the limits of `hang:`: 300 s for a step, five times
    the usual step where that is more, 1200 s for each part of the start. Keep these here above
    those, so that the stacks of all ranks have been written and a watcher has had a minute to end
    the attempt before a collective times out.
    """

    init: Count = 1800
    step: Count = 600
    vote: Count = 600
    term_vote: Count = 10
    checkpoint: Count = 3600


class TrainSpec(Strict):
    """What the reference trainer does."""

    model: ModelSpec
    data: DataSpec
    steps: Count
    global_batch: Count
    micro_batch: Count = 1
    seed: WholeNumber = 0
    lr: PositiveFloat = 3e-4
    warmup_steps: WholeNumber = 0
    lr_schedule: Literal["cosine", "constant", "linear"] = "cosine"
    min_lr_ratio: Fraction = 0.1
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    clip_norm: PositiveFloat | None = 1.0
    precision: Literal["bf16", "fp32"] = "bf16"
    mesh: Annotated[MeshSpec, BeforeValidator(_named_mesh)] = MeshSpec()
    reshard_after_forward: bool = True
    # "unsharded" saves a reduce-scatter per micro-batch and costs the whole gradient in fp32 on
    # each rank, 32 GB for 8 billion parameters.
    accumulate: Literal["sharded", "unsharded"] = "sharded"
    deterministic: bool = True
    checkpoint: CheckpointSpec = CheckpointSpec()
    timeouts_s: TimeoutSpec = TimeoutSpec()

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

        files = tuple(full(text) for text in self.data.text_files)
        changes: dict[str, Any] = {"data": self.data.model_copy(update={"text_files": files})}
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


def fits(spec: TrainSpec, world_size: int) -> bool:
    """Return whether ``world_size`` ranks can share out the batch and the mesh."""
    try:
        check_batch(spec, world_size)
    except SpecError:
        return False
    return True


def mesh_shape(spec: TrainSpec, world_size: int) -> tuple[int, int]:
    """Return (replicate, shard): how ``world_size`` ranks share the parameters.

    Raises:
        SpecError: The mesh asked for does not have that many ranks, or its shard groups have no
            size.
    """
    replicate, shard = _sizes(spec.mesh, world_size)
    if replicate * shard != world_size:
        raise SpecError(
            f"mesh: {replicate} replicas x {shard} shards = {replicate * shard} ranks, but the job"
            f" has {world_size}; leave mesh.shard out to let it follow the number of ranks"
        )
    return replicate, shard


def _sizes(mesh: MeshSpec, world_size: int) -> tuple[int, int]:
    if mesh.replicate != "auto":
        return mesh.replicate, mesh.shard or max(world_size // mesh.replicate, 1)
    if mesh.shard is None:  # fsdpq settles it from the GPUs of a node before it writes train.json
        raise SpecError("mesh: replicate: auto needs a size for the shard groups; add shard")
    return max(world_size // mesh.shard, 1), mesh.shard


def check_batch(spec: TrainSpec, world_size: int) -> int:
    """Return how many micro-batches each of ``world_size`` ranks takes per step.

    Raises:
        SpecError: The global batch does not divide into whole micro-batches over the ranks, or
            the mesh does not fit the ranks; says which batch sizes would do.
    """
    mesh_shape(spec, world_size)
    at_once = spec.micro_batch * world_size
    if spec.global_batch % at_once:
        below = spec.global_batch // at_once * at_once
        near = [str(size) for size in (below, below + at_once) if size]
        raise SpecError(
            f"global_batch {spec.global_batch} cannot be shared out: micro_batch {spec.micro_batch}"
            f" x {world_size} ranks take {at_once} sequences at once. Use global_batch"
            f" {' or '.join(near)}, or another micro_batch"
        )
    return spec.global_batch // at_once
