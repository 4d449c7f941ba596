"""The `hang:` part of a job file: when an attempt that makes no progress is ended."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from orchestrator.keys.fields import Strict
from orchestrator.rundir.limits import Limits

Seconds = Annotated[float, Field(gt=0, le=604800, allow_inf_nan=False)]


class HangSpec(Strict):
    """How long a rank may make no progress, in seconds.

    A step may take `factor` times the median of the last steps, but at least `min_s` and, as far
    as it is worked out, at most `max_s`. `start_s` holds for each part of the start (imports and
    process groups; loading, compilation and the first steps), `save_s` for a save or a resume;
    it grows with the saves that were slow and went well.
    """

    enabled: bool = True
    min_s: Seconds = Limits().min_s
    factor: Annotated[float, Field(ge=2, le=1000, allow_inf_nan=False)] = Limits().factor
    start_s: Seconds = Limits().start_s
    save_s: Seconds = Limits().save_s
    max_s: Seconds = Limits().max_s

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, data: Any) -> Any:
        if isinstance(data, bool):
            return {"enabled": data}
        if isinstance(data, dict | cls):
            return data
        raise ValueError("write true, false, or the limits to change, such as {min_s: 600}")

    @model_validator(mode="after")
    def _in_order(self) -> "HangSpec":
        if self.max_s < self.min_s:
            raise ValueError(
                f"max_s is {self.max_s:g} and min_s {self.min_s:g}: the most must not be less than"
                " the least; raise max_s or lower min_s"
            )
        return self

    def limits(self) -> Limits:
        """Return the limits as the plan holds them."""
        return Limits(
            enabled=self.enabled,
            min_s=self.min_s,
            factor=self.factor,
            start_s=self.start_s,
            save_s=self.save_s,
            max_s=self.max_s,
        )
