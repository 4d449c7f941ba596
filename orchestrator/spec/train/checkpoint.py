"""Checkpoints: `train.checkpoint`."""

from pathlib import PurePath, PurePosixPath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.checkpoint.interval import MAX_INTERVAL_S, MTBF_S
from orchestrator.errors import SpecError
from orchestrator.keys.counts import MOST, Count
from orchestrator.keys.fields import Strict, no_control
from orchestrator.spec.train.numbers import PositiveFloat


def _every_steps(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST):
        return value
    raise ValueError(f"must be a whole number of steps, 1 to {MOST}, or auto")


def _keep_last(value: object) -> object:
    if type(value) is int and value < 2:
        raise ValueError(
            "must be 2 or more: the newest checkpoint may turn out to be damaged, and then the one"
            " before it is all there is"
        )
    return value


def _local_copy(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, str) or not _is_plain(PurePosixPath(value)):
        raise ValueError(
            "must be an absolute path on the node itself, without '..', such as /dev/shm/ckpt or a"
            " folder on its NVMe; or null"
        )
    if "$" in value:
        raise ValueError("contains '$'; no variable is expanded here, so write the plain path")
    return no_control(value)


def _is_plain(path: PurePosixPath) -> bool:
    return path.is_absolute() and len(path.parts) > 1 and ".." not in path.parts


class CheckpointSpec(Strict):
    """When checkpoints are written, which are kept, and how hard a resume looks at them.

    With `mode: async` a rank copies its state to host memory while the next step computes, and a
    process of its own writes it out; `sync` holds the training up until a checkpoint is published.
    `auto` is async on GPUs and sync without: there the copy costs the training what it saves. The
    saves of a notice and of the last step are always sync. Where a node lacks the memory for the
    copies (as much as the checkpoint holds, shared out over the ranks), all ranks save as with
    `sync` and say so.

    Each rank writes ``writers`` files at once. `mtbf_s` and `max_interval_s` are for
    `every_steps: auto`: how many seconds the job is expected to run between ends that lose work
    (kills, failures, notices too late for a save), and how many there may be between two saves.

    `local_copy` is a directory on each node's own disk or in its memory: what its ranks write is
    kept there too, and a restart reads from it what is there and has the published hash.
    """

    mode: Literal["auto", "sync", "async"] = "auto"
    every_steps: Annotated[int | Literal["auto"], BeforeValidator(_every_steps)] = 500
    mtbf_s: PositiveFloat = MTBF_S
    max_interval_s: PositiveFloat = MAX_INTERVAL_S
    keep_last: Annotated[int, Field(le=10**6, strict=True), BeforeValidator(_keep_last)] = 2
    keep_every: Count | None = None
    writers: Annotated[int, Field(ge=1, le=64, strict=True)] = 4
    resume: Literal["auto", "required"] = "auto"
    verify: Literal["full", "size"] = "full"
    local_copy: Annotated[str | None, BeforeValidator(_local_copy)] = None


def check_local_copy(local_copy: str | None, run: PurePath) -> None:
    """Refuse a local copy in the run directory, which all nodes share. Looks at names alone.

    Raises:
        SpecError: It is the run directory ``run``, or lies in it.
    """
    if local_copy is None:
        return
    if PurePath(local_copy).is_relative_to(run):
        raise SpecError(
            f"train.checkpoint.local_copy: {local_copy} lies in the run directory {run}, which all"
            " nodes share; name a directory on each node's own disk or in its memory, such as"
            " /dev/shm/ckpt, or leave it out"
        )
