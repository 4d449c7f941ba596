"""How long a worker may make no progress before it counts as hung. Pure.

A false alarm costs a restart, a missed one the whole allocation until a collective times out (600 s
with NCCL). So a step may take several times as long as steps usually do, and never less than some
minutes; what happens once (imports, loading, compilation) and saves have limits of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

OFF = "off"
# With fewer steps than this nothing can be said of their usual length: a second step may compile.
ENOUGH_STEPS = 3
_SAVE_FACTOR = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits in seconds, and the factor over the usual time of a step.

    Attributes:
        min_s: A step may always take this long.
        factor: How many times the median of the last steps a step may take.
        start_s: For each part of the start: until the resume, and from there to the first steps.
        save_s: For a save or a resume; grows to five times the longest save of the attempt.
        max_s: What is worked out from earlier times is never more than this.
    """

    enabled: bool = True
    min_s: float = 300.0
    factor: float = 5.0
    start_s: float = 1200.0
    save_s: float = 1200.0
    max_s: float = 3600.0

    def of_step(self, times: Sequence[float]) -> float:
        """Return the limit of the next step, after steps that took ``times`` seconds.

        >>> Limits().of_step([1.0, 1.1, 0.9]), Limits().of_step([90.0] * 5), Limits().of_step([1.0])
        (300.0, 450.0, 1200.0)
        """
        if len(times) < ENOUGH_STEPS:
            return max(self.min_s, self.start_s)
        return max(self.min_s, min(self.factor * median(times), self.max_s))

    def of_save(self, longest_s: float) -> float:
        """Return the limit of a save, where the longest one so far took ``longest_s`` seconds."""
        return max(self.save_s, min(_SAVE_FACTOR * longest_s, self.max_s))

    def to_text(self) -> str:
        """Return the limits as one word, for the environment of the workers.

        >>> Limits().to_text()
        'min_s=300,factor=5,start_s=1200,save_s=1200,max_s=3600'
        """
        if not self.enabled:
            return OFF
        return ",".join(f"{name}={getattr(self, name):.12g}" for name in _NUMBERS)

    @classmethod
    def from_text(cls, text: str) -> "Limits":
        """Return the limits that `to_text` gave ``text`` for; what makes no sense is the default.

        A worker must not fail for it: the variable may come from another version.
        """
        if text.strip() == OFF:
            return cls(enabled=False)
        pairs = (item.partition("=") for item in text.split(","))
        given = {name.strip(): _positive(value) for name, _, value in pairs}
        default = cls()
        return cls(
            min_s=given.get("min_s") or default.min_s,
            factor=given.get("factor") or default.factor,
            start_s=given.get("start_s") or default.start_s,
            save_s=given.get("save_s") or default.save_s,
            max_s=given.get("max_s") or default.max_s,
        )


_NUMBERS = tuple(field.name for field in fields(Limits) if field.name != "enabled")


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
