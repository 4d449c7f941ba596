"""How many steps to train between two saves. Pure.

A save every `interval` costs `save / interval` of the time; an end that loses work costs half an
interval on average. The best interval lies where the two are in balance:

    Young: sqrt(2 save mtbf)
    Daly:  sqrt(2 save mtbf) (1 + sqrt(save / 2 mtbf) / 3 + (save / 2 mtbf) / 9) - save
           for save < 2 mtbf, else mtbf

Both are the time of training between two saves. Sources: J. W. Young, A first order approximation
to the optimum checkpoint interval, CACM 17 (9), 1974; J. T. Daly, A higher order estimate of the
optimum checkpoint interval for restart dumps, FGCS 22 (3), 2006, equation 37. Only the time that a
save blocks the training counts as its cost. What is written in the background costs no time of
training, and the formula alone would have one save follow the other without a pause; but the file
system is shared, and so is the network. So a save in the background may be under way for a tenth of
the time at most (`BUSY`), as far as `max_interval_s` allows that.

The mean time between ends that lose work is estimated from the run's own attempts. A few days of
one run have few of them, so what was configured counts as one end that was seen: a gamma prior of
shape 1 over the rate, whose posterior mean after `n` ends in `t` seconds is (1 + n) / (mtbf + t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

# A preemptible queue: several preemptions a day that may come without time to save. Llama 3 on
# 16,384 GPUs saw an unexpected end every 3.1 h (arXiv 2407.21783).
MTBF_S = 4 * 3600.0
MAX_INTERVAL_S = 3600.0
# The part of the time in which a save in the background may be under way.
BUSY = 0.1
# Until a save has been measured: early, so that its cost is known soon.
FIRST_S = 60.0


class Ended(Enum):
    """How an earlier attempt ended, as far as its work is concerned."""

    SAVED = "stopped for a notice, and saved"
    LOST = "any other end after a new step"
    IDLE = "before a new step"


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier attempt: for how many seconds it ran, and how it ended."""

    ran_s: float
    ended: Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When to save.

    Attributes:
        steps: Steps between two saves, at least 1.
        seconds: The same as time, from the formula and its bounds, before it became whole steps.
        save_s: What a save is expected to block; None before the first one was measured.
        step_s: Seconds of a step.
        mtbf_s: Mean time between ends that lose work.
        notice_saves: Whether a notice leaves time enough for a save; True while unknown.
    """

    steps: int
    seconds: float
    save_s: float | None
    step_s: float
    mtbf_s: float
    notice_saves: bool

    @property
    def why(self) -> str:
        """One line for people."""
        what = f"{self.steps} step{'s' * (self.steps != 1)} of {self.step_s:.3g} s"
        if self.save_s is None:
            return f"{what}, until a first save has been measured"
        notice = "" if self.notice_saves else "; a notice comes too late for a save"
        return (
            f"{what}: a save blocks {self.save_s:.3g} s, work is lost every"
            f" {self.mtbf_s / 3600:.2g} h{notice}"
        )


def young_s(save_s: float, mtbf_s: float) -> float:
    """Return Young's interval in seconds.

    >>> round(young_s(300, 24 * 3600) / 60)
    120
    """
    return math.sqrt(2 * save_s * mtbf_s)


def daly_s(save_s: float, mtbf_s: float) -> float:
    """Return Daly's interval in seconds.

    >>> [round(daly_s(5, mtbf_min), 1) for mtbf_min in (24 * 60, 6 * 60, 15)]
    [116.7, 56.7, 9.1]
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young_s(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def bounded_s(save_s: float, mtbf_s: float, *, whole_s: float | None, max_s: float) -> float:
    """Return Daly's interval within its bounds, in seconds.

    Args:
        save_s: For how long a save blocks the training.
        mtbf_s: Mean time between ends that lose work.
        whole_s: How long a save in the background is under way; None for one that blocks.
        max_s: The most seconds between two saves; it goes before all else.

    >>> [bounded_s(0.1, 4 * 3600, whole_s=whole_s, max_s=3600) for whole_s in (51, 900)]
    [510.0, 3600]
    """
    return min(max(daly_s(save_s, mtbf_s), (whole_s or 0.0) / BUSY), max_s)


def estimated_mtbf_s(
    past: Sequence[Past], *, running_s: float, prior_s: float, notice_saves: bool
) -> float:
    """Return the mean time between ends that lose work, in seconds.

    Args:
        past: The earlier attempts.
        running_s: For how long the present one runs.
        prior_s: What is believed before anything is seen; counts as one end.
        notice_saves: Whether a notice leaves time for a save; else those ends count as well.
    """
    counted = {Ended.LOST} if notice_saves else {Ended.LOST, Ended.SAVED}
    ends = sum(attempt.ended in counted for attempt in past)
    seen_s = running_s + sum(attempt.ran_s for attempt in past)
    return (prior_s + seen_s) / (1 + ends)


def choose(
    *,
    saves_s: Sequence[float],
    step_s: float,
    past: Sequence[Past],
    running_s: float,
    prior_s: float,
    max_s: float,
    notice_s: float | None,
    whole_s: float | None = None,
) -> Interval:
    """Return when to save.

    Args:
        saves_s: For how long saves blocked the training, newest last; empty before the first one.
        step_s: Seconds of a step.
        past: The earlier attempts.
        running_s: For how long the present one runs.
        prior_s: The mean time between ends that lose work, before anything is seen.
        max_s: The most seconds of training that may be at risk.
        notice_s: How long before the end a notice comes; None where unknown.
        whole_s: How long a save takes until it is published, where it blocks for less than that.
            The next one begins after ten times as long, and the save of a notice needs that long.
    """
    save_s = median(saves_s) if saves_s else None
    full_s = save_s if whole_s is None else whole_s
    notice_saves = full_s is None or notice_s is None or notice_s >= full_s + step_s
    mtbf_s = estimated_mtbf_s(past, running_s=running_s, prior_s=prior_s, notice_saves=notice_saves)
    if save_s is None:
        seconds = min(FIRST_S, max_s)
    else:
        seconds = bounded_s(save_s, mtbf_s, whole_s=whole_s, max_s=max_s)
    return Interval(
        steps=max(1, int(seconds / step_s)) if step_s > 0 else 1,
        seconds=seconds,
        save_s=save_s,
        step_s=step_s,
        mtbf_s=mtbf_s,
        notice_saves=notice_saves,
    )
