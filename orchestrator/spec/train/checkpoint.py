"""Checkpoints: `train.checkpoint`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.checkpoint.interval import MAX_INTERVAL_S, MTBF_S
from orchestrator.fields import Strict
from orchestrator.spec.train.numbers import Count, PositiveFloat


def _every_steps(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number of steps, 1 or more, or auto")


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
    """

    mode: Literal["auto", "sync", "async"] = "auto"
    every_steps: Annotated[int | Literal["auto"], BeforeValidator(_every_steps)] = 500
    mtbf_s: PositiveFloat = MTBF_S
    max_interval_s: PositiveFloat = MAX_INTERVAL_S
    # Two at least: the newest may turn out to be damaged, and then its elder is all there is.
    keep_last: Annotated[int, Field(ge=2, strict=True)] = 2
    keep_every: Count | None = None
    writers: Annotated[int, Field(ge=1, le=64, strict=True)] = 4
    resume: Literal["auto", "required"] = "auto"
    verify: Literal["full", "size"] = "full"
