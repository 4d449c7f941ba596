"""What goodput to expect of a job on N GPUs. Pure: a formula, and a simulation to check it.

The model. A job trains in segments of `interval_s` useful seconds, each closed by a save that
blocks it for `save_s`. GPUs fail independently with a constant rate, so the job fails with the
rate `gpus x failures_per_gpu_hour`, be it training, saving or starting up. A failure loses what the
segment has done so far (half an interval on average); then nothing runs for `detect_s` +
`requeue_s` (noticing it, and waiting for nodes), and the job takes `startup_s` to its first step,
in which it may fail again. A preemption comes `preemptions_per_day` times in a day of training,
with a notice that is long enough: the job saves, waits `requeue_s` and starts up; nothing is lost.

With `replicas` = 2, every GPU has a twin that does the same work. One failure interrupts nothing
then; the job fails if the twin fails too before the first one is replaced, `repair_s` later. Half
of the GPUs count as useful.

Left out: stragglers, slow-downs while a checkpoint is written in the background, failures that come
in bursts (Weibull), steps that are cut off (they are short against the interval).

With the job's failure rate f, w = interval + save, and the memoryless rule that a segment begins
anew after each failure (as J. T. Daly, FGCS 22 (3), 2006, section 3):

    training time per segment      (e^(f w) - 1) / f
    failures per segment           e^(f w) - 1
    time of a start-up             (e^(f startup) - 1) / f + (e^(f startup) - 1) down
    goodput = interval / (training time x (1 + f (down + start-up) + p (save + requeue + start-up)))

where down = detect + requeue. A preemption shortens its segment by a save; the formula ignores
that, which matters only where preemptions are about as frequent as saves.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from orchestrator.checkpoint.interval import MAX_INTERVAL_S, daly_s

HOUR_S = 3600.0
DAY_S = 86400.0
# Llama 3 405B: 419 unexpected interruptions in 54 days of 16,384 H100 (arXiv 2407.21783, 3.3.4).
LLAMA3_RATE = 419 / (54 * 24 * 16384)
GPUS = (8, 64, 512, 2048, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job and its surroundings. All times in seconds.

    Attributes:
        failures_per_gpu_hour: Of one GPU with all that belongs to it: host, network, software.
        preemptions_per_day: Ends with a notice that leaves time to save.
        save_s: For how long a save blocks the training.
        interval_s: Useful seconds between two saves; None takes Daly's, an hour at most.
        detect_s: Until a failure is noticed.
        requeue_s: Until there are nodes again.
        startup_s: From the start of the script to its first step.
        replicas: 1, or 2 where each GPU has a twin.
        repair_s: Until a failed twin is replaced.
    """

    gpus: int
    failures_per_gpu_hour: float = LLAMA3_RATE
    preemptions_per_day: float = 0.0
    save_s: float = 10.0
    interval_s: float | None = None
    detect_s: float = 60.0
    requeue_s: float = 60.0
    startup_s: float = 240.0
    replicas: int = 1
    repair_s: float = HOUR_S

    def __post_init__(self) -> None:
        times = (self.save_s, self.detect_s, self.requeue_s, self.startup_s, self.repair_s)
        rates = (self.failures_per_gpu_hour, self.preemptions_per_day)
        if min(*times, *rates) < 0 or (self.interval_s is not None and self.interval_s <= 0):
            raise ValueError("times and rates must not be negative, and interval_s more than 0")
        if self.replicas not in (1, 2) or self.gpus < 1 or self.gpus % self.replicas:
            raise ValueError("replicas must be 1 or 2, and gpus a multiple of it")

    @property
    def failure_rate(self) -> float:
        """Failures of the whole job per second."""
        one = self.failures_per_gpu_hour / HOUR_S
        if self.replicas == 1:
            return self.gpus * one
        return self.gpus * one * -math.expm1(-one * self.repair_s)

    @property
    def best_interval_s(self) -> float:
        """The given interval, or Daly's within the bounds that `auto` keeps to."""
        if self.interval_s is not None:
            return self.interval_s
        if not self.failure_rate:
            return MAX_INTERVAL_S
        return min(MAX_INTERVAL_S, max(1.0, daly_s(self.save_s, 1 / self.failure_rate)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What becomes of a job's time; all but `interval_s` and `mtbf_s` are parts of it, of sum 1.

    Attributes:
        goodput: Training that counts, on GPUs that do no twin's work.
        saving: Saves that a later segment stood on.
        redone: Training and saves that a failure undid.
        restarts: Noticing failures, waiting and starting up after them.
        preemptions: Saving, waiting and starting up for preemptions.
        replicas: What the twins do.
        mtbf_s: Mean time between failures of the job, in seconds; infinite without any.
    """

    goodput: float
    saving: float
    redone: float
    restarts: float
    preemptions: float
    replicas: float
    interval_s: float
    mtbf_s: float


def predict(job: Job) -> Prediction:
    """Return the expected goodput of ``job``, by the formula."""
    rate, interval_s = job.failure_rate, job.best_interval_s
    segment_s = interval_s + job.save_s
    if rate * max(segment_s, job.startup_s) > 500:  # e^500: it would never get through
        return _never(job, interval_s)
    training_s = _until(segment_s, rate)
    startup_s = _until(job.startup_s, rate) + math.expm1(rate * job.startup_s) * _down(job)
    failing = rate * (_down(job) + startup_s)
    preempted = job.preemptions_per_day / DAY_S * (job.save_s + job.requeue_s + startup_s)
    whole_s = training_s * (1 + failing + preempted)
    useful = interval_s / whole_s
    return Prediction(
        goodput=useful / job.replicas,
        saving=job.save_s / whole_s,
        redone=max(0.0, (training_s - segment_s) / whole_s),
        restarts=training_s * failing / whole_s,
        preemptions=training_s * preempted / whole_s,
        replicas=useful * (1 - 1 / job.replicas),
        interval_s=interval_s,
        mtbf_s=1 / rate if rate else math.inf,
    )


def _until(work_s: float, rate: float) -> float:
    """Return the time to get ``work_s`` done in one piece, without what follows each failure."""
    return math.expm1(rate * work_s) / rate if rate else work_s


def _down(job: Job) -> float:
    return job.detect_s + job.requeue_s


def _never(job: Job, interval_s: float) -> Prediction:
    return Prediction(
        goodput=0.0,
        saving=0.0,
        redone=0.0,
        restarts=1.0,
        preemptions=0.0,
        replicas=0.0,
        interval_s=interval_s,
        mtbf_s=1 / job.failure_rate,
    )


def simulate(job: Job, *, useful_s: float, uniform: Callable[[], float]) -> float:
    """Return the goodput of one run through ``useful_s`` of training, event after event.

    Args:
        job: The job; `replicas` enter by the failure rate.
        useful_s: How long the run trains, without anything that does not count.
        uniform: Random numbers from [0, 1), such as `random.Random(7).random`.
    """
    clock = _Clock(job, uniform)
    done_s, interval_s = 0.0, job.best_interval_s
    while done_s < useful_s:
        goal_s = min(interval_s, useful_s - done_s)
        trained_s, event = clock.train(goal_s, job.save_s)
        if event == "failure":
            clock.start_up(_down(job))
            continue
        done_s += trained_s
        if event == "preemption":
            clock.start_up(job.save_s + job.requeue_s)
    return done_s / clock.now / job.replicas


class _Clock:
    """The time of a simulated run, and what happens in it."""

    def __init__(self, job: Job, uniform: Callable[[], float]) -> None:
        self.now = 0.0
        self._job = job
        self._uniform = uniform

    def _wait(self, rate: float) -> float:
        """Draw the time until the next event of a Poisson process."""
        return -math.log1p(-self._uniform()) / rate if rate else math.inf

    def train(self, goal_s: float, save_s: float) -> tuple[float, str]:
        """Train for ``goal_s`` and save; return what was trained, and what ended it."""
        failure = self._wait(self._job.failure_rate)
        preemption = self._wait(self._job.preemptions_per_day / DAY_S)
        first = min(failure, preemption)
        if first >= goal_s + save_s:
            self.now += goal_s + save_s
            return goal_s, ""
        self.now += first
        return min(first, goal_s), "failure" if failure <= preemption else "preemption"

    def start_up(self, down_s: float) -> None:
        """Wait for ``down_s`` and start up, again after each failure in that."""
        self.now += down_s
        while (failure := self._wait(self._job.failure_rate)) < self._job.startup_s:
            self.now += failure + _down(self._job)
        self.now += self._job.startup_s


def table(job: Job, gpus: Iterable[int] = GPUS) -> str:
    """Return predictions for several sizes of ``job`` as a Markdown table."""
    rows = ["| GPUs | fails every | saves every | goodput | saving | done again | restarts |"]
    rows.append("|---|---|---|---|---|---|---|")
    for size in gpus:
        found = predict(replace(job, gpus=size))
        parts = (found.goodput, found.saving, found.redone, found.restarts + found.preemptions)
        shown = " | ".join(f"{part:.1%}" for part in parts)
        rows.append(
            f"| {size:,} | {_hours(found.mtbf_s)} | {found.interval_s / 60:.0f} min | {shown} |"
        )
    return "\n".join(rows)


def _hours(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} d" if seconds > 3 * DAY_S else f"{seconds / HOUR_S:.1f} h"
