"""How long each rank was busy with a step by itself, and which one the longest.

All ranks' whole steps take the same time, since each waits for the others in every collective. What
tells ranks apart without another synchronisation is the host's part: waiting for samples, and on a
GPU the time until the processor has put the whole step into the GPU's queue (Python, launches; a
host that is ahead by a full queue waits in there for its GPU). Without a GPU collectives happen on
the processor, so there it is the processor time of the training thread, besides the wait for
samples. A GPU that is slower than the others is not seen in it; `status` names one by its clock.

The seconds of all ranks travel in the vote after the step, so they stand in the line of the next.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Takes the time that a rank is busy by itself."""

    on_gpu: bool
    began: float
    busy_from: float

    @classmethod
    def start(cls, *, on_gpu: bool) -> "Stopwatch":
        """Return one that runs."""
        return cls(on_gpu, time.perf_counter(), time.thread_time())

    def read(self, *, waited_s: float) -> float:
        """Return the seconds so far, of which ``waited_s`` were waited for samples."""
        if self.on_gpu:
            return time.perf_counter() - self.began
        return time.thread_time() - self.busy_from + waited_s


def summary(own_s: Sequence[float], *, step: int) -> dict[str, object]:
    """Return `ranks` for a line of metrics.jsonl; nothing where there is nobody to compare. Pure.

    >>> summary([0.25, 0.26, 0.5, 0.25], step=7)
    {'ranks': {'step': 7, 'slowest': 2, 'slowest_s': 0.5, 'median_s': 0.255}}
    """
    if len(own_s) < 2:
        return {}
    slowest = max(range(len(own_s)), key=lambda rank: own_s[rank])
    return {
        "ranks": {
            "step": step,
            "slowest": slowest,
            "slowest_s": own_s[slowest],
            "median_s": round(median(own_s), 6),
        }
    }
