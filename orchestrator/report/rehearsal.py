"""What a rehearsed preemption cost, as data and as text. Pure."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """What a rehearsed preemption cost.

    Attributes:
        stopped_at: The last step before the stop.
        resumed_at: The step of the checkpoint that the next attempt started from.
        stop_s: Seconds from the notice until the attempt's workers had ended.
        down_s: Seconds from the notice until the first new step.
    """

    run: str
    attempt: int
    stopped_at: int
    resumed_at: int
    steps_lost: int
    stop_s: float | None
    down_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        return asdict(self)


def drill(found: DrillReport) -> str:
    """Return what a rehearsed preemption cost, in three lines."""
    stop = "an unknown time" if found.stop_s is None else f"{found.stop_s:.0f} s"
    return "\n".join(
        (
            f"{found.run}: attempt {found.attempt} stopped after step {found.stopped_at}, {stop}"
            " after the notice",
            f"attempt {found.attempt + 1} resumed from step {found.resumed_at}:"
            f" {found.steps_lost} steps lost",
            f"first new step {found.down_s:.0f} s after the notice",
        )
    )
