"""Memory and speed: keys of `train` that change neither model nor data."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from orchestrator.keys.counts import Count
from orchestrator.keys.fields import Strict

# Logits in fp32 that may be there at once, in bytes, where `loss_chunks` is auto. Beside them stand
# their bf16 original and two gradients, so the peak is about three times this.
LOGITS_AT_ONCE = 2**30
MOST_CHUNKS = 65_536


def _chunks(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST_CHUNKS):
        return value
    raise ValueError("must be a whole number of parts, 1 to 65,536, or auto")


class ParallelSpec(Strict):
    """What memory and speed are traded for.

    `activation_checkpointing`: blocks compute again on the way back, all of it (`full`) or what is
    cheap (`selective`). `loss_chunks`: the head is applied to so many parts of a micro-batch one
    after the other; `auto` keeps the logits there at once below 1 GiB in fp32. `prefetch`: so many
    blocks ahead are gathered; 0 leaves it to PyTorch, which gathers one ahead. `cpu_offload`:
    parameters, gradients and optimizer live in host memory, and the optimizer runs there.
    """

    activation_checkpointing: Literal["off", "selective", "full"] = "off"
    compile: StrictBool = False
    fp8: Literal["off", "tensorwise", "rowwise"] = "off"
    precision: Literal["bf16", "fp32"] = "bf16"
    loss_chunks: Annotated[int | Literal["auto"], BeforeValidator(_chunks)] = "auto"
    prefetch: Annotated[int, Field(ge=0, le=8, strict=True)] = 0
    cpu_offload: StrictBool = False

    @model_validator(mode="after")
    def _float8_is_possible(self) -> Self:
        if self.fp8 == "off":
            return self
        if not self.compile:
            raise ValueError(
                "fp8 needs compile: true; without it, casting costs more time than FP8 saves"
            )
        if self.precision != "bf16":
            raise ValueError("fp8 needs precision: bf16, which all that is not FP8 computes in")
        return self


class SafetySpec(Strict):
    """What happens to a step whose loss or gradient is no longer finite.

    `stop` ends the attempt before the step changes anything. `skip` leaves its update out and goes
    on with the next samples, `nonfinite_limit` times in a row at most.
    """

    nonfinite: Literal["stop", "skip"] = "stop"
    nonfinite_limit: Count = 10


def rows_at_once(rows: int, vocabulary: int, wanted: int | str) -> int:
    """Return the length of a part of the loss, where ``loss_chunks`` is ``wanted``.

    Parts are of one length where that can be: it is compiled for.

    >>> rows_at_once(16384, 128256, "auto"), rows_at_once(10, 256, 3)
    (2048, 4)
    """
    if wanted != "auto":
        return -(-rows // int(wanted))
    most = max(LOGITS_AT_ONCE // (4 * vocabulary), 1)
    parts = -(-rows // most)
    even = next((n for n in range(parts, 2 * parts) if rows % n == 0), parts)
    return -(-rows // even)
