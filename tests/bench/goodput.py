"""`python -m tests.bench.goodput`: measured goodput of runs on the test cluster beside the model's.

Two runs of the torch-free counter, one after the other, each on its own two hosts of a real Slurm:

1. `killed`: preempted without grace at times drawn from an exponential distribution (seeded); the
   steps since the last save are lost each time.
2. `noticed`: preempted with a notice at such times; it saves first, and loses nothing.

From the ledger of each run come its measured goodput and what the model needs besides the schedule:
how long a start-up, a save and the way back into the queue took. The model never sees which steps
were lost. It needs root and Slurm, as `make slurm` does, and about ten minutes.
"""

from __future__ import annotations

import json
import os
import platform
import random
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from orchestrator.goodput import DAY_S, HOUR_S, Job, predict
from orchestrator.rundir.layout import RunLayout
from tests.slurm.cluster import Cluster
from tests.slurm.user import FsdpqUser, attempts, steps

STEP_S = 0.25
EVERY = 20  # steps between saves
SAVE_S = 0.5
STEPS = 480
MTBF_S = 15.0
MAX_ENDS = 16
PATIENCE_S = 120
URGENT_S = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A run and how it is ended; `words` go to the counter."""

    name: str
    partition: str
    words: tuple[str, ...]


CASES = (Case("killed", "nograce", ("--deaf",)), Case("noticed", "spot", ()))


def run_case(cluster: Cluster, case: Case, draw: random.Random) -> tuple[dict[str, Any], int]:
    """Return the status of the run at its end, which is printed, and how often it was preempted."""
    user = FsdpqUser(cluster)
    try:
        words = [STEPS, STEP_S, EVERY, "--save-s", SAVE_S, *case.words]
        run = user.count(case.name, words, partition=case.partition)
        user.start("watch", case.name, "--every", "1")
        ends = 0
        while ends < MAX_ENDS and preempt(cluster, run, draw.expovariate(1 / MTBF_S)):
            ends += 1
        cluster.wait_for(run.finished.exists, 10 * PATIENCE_S, "it finishes")
        # The end mark comes before the end of the batch shell.
        newest = run.attempt(attempts(run))
        cluster.wait_for(newest.exit.exists, PATIENCE_S, "its job ends")
        print(user.fsdpq("status", case.name).stdout, flush=True)
        return user.status(case.name), ends
    finally:
        user.close()


def preempt(cluster: Cluster, run: RunLayout, after_s: float) -> bool:
    """Preempt the run ``after_s`` seconds after the first step of an attempt; False if over."""
    cluster.wait_for(lambda: run.finished.exists() or trains(run), PATIENCE_S, "it trains")
    until = time.monotonic() + after_s
    while time.monotonic() < until and not run.finished.exists():
        time.sleep(0.1)
    number = attempts(run)
    if run.finished.exists():
        return False
    cluster.submit_prod(nodes=4, seconds=URGENT_S)
    cluster.wait_for(
        lambda: attempts(run) > number or run.finished.exists(), PATIENCE_S, "it is back"
    )
    return attempts(run) > number


def trains(run: RunLayout) -> bool:
    """Return whether the newest attempt has done a step."""
    newest = attempts(run)
    return any(line["attempt"] == newest for line in steps(run)[-1:])


def model(status: dict[str, Any], case: Case, ends: int) -> Job:
    """Return the model's job: rates from the schedule, times from the run's own ledger."""
    rows, total = status["attempts"], status["goodput"]
    trained_s = sum(total[key] for key in ("useful_s", "lost_s", "saving_s", "other_s"))
    rate = ends / trained_s
    killed = case.name == "killed"
    back_s = mean(
        (one["stopping_s"] or 0.0) + two["queued_s"] + two["startup_s"]
        for one, two in pairwise(rows)
    )
    saves = STEPS // EVERY + (0 if killed else ends)
    return Job(
        gpus=1,
        failures_per_gpu_hour=rate * HOUR_S if killed else 0.0,
        preemptions_per_day=0.0 if killed else rate * DAY_S,
        # What is neither a step nor a start-up stands between the steps: votes and metrics.
        save_s=(total["saving_s"] + total["other_s"]) / saves,
        interval_s=EVERY * total["useful_s"] / STEPS,
        detect_s=0.0,
        # The schedule ends no start-up, so all of the way back is waiting.
        requeue_s=back_s,
        startup_s=0.0,
    )


def row_of(case: Case, status: dict[str, Any], ends: int) -> str:
    """Return a line of the table."""
    total = status["goodput"]
    # The time before the first step is a start-up that no end caused: the model has none.
    first = status["attempts"][0]
    wall_s = total["wall_s"] - first["queued_s"] - first["startup_s"]
    measured = total["useful_s"] / wall_s
    expected = predict(model(status, case, ends))
    lost = total["lost_s"] / wall_s
    return (
        f"| {case.name} | {ends} | {total['wall_s']:.0f} s | {total['lost_steps']} |"
        f" {lost:.1%} | {expected.redone:.1%} | {measured:.1%} | {expected.goodput:.1%} |"
    )


def main() -> None:
    """Print the table and where the time of each run went."""
    shown = ["| run | ends | wall | steps lost | lost | model | goodput | model |"]
    shown.append("|---|---|---|---|---|---|---|---|")
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    with Cluster() as cluster:
        print(cluster.run(["sbatch", "--version"]).stdout.strip())
        for number, case in enumerate(CASES):
            status, ends = run_case(cluster, case, random.Random(7 + number))
            shown.append(row_of(case, status, ends))
            print(json.dumps(status["goodput"]))
            print(model(status, case, ends), flush=True)
            cluster.reset()
    print("\n".join(shown))


if __name__ == "__main__":
    main()
