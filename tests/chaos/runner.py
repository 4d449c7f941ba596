"""Runs and faults at once: a thread for each run's faults, one for those of the cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.slurm.cluster import Cluster, SlurmVersion

from . import remains
from .faults import FAULTS
from .judge import Evidence, problems
from .schedule import Fault
from .strike import Strike
from .weather import WEATHER
from .world import WATCHERS, MissedError, Run, StoppedError, World, config

# A lost node is noticed after up to 30 s, a run without a watcher waits for two minutes.
BACK_S = 360.0
MEET_S = 40.0
# Steps after which a run that should have ended by the fault before has evidently not.
NOT_ENDED = 30
MORE_STEPS = 25

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a storm.

    Attributes:
        problems: All that is not as it must be, a line each.
        runs: The evidence of each run that could be judged.
        took_s: From the start of the cluster to its end.
    """

    strikes: Sequence[Strike]
    runs: Sequence[Evidence]
    problems: Sequence[str]
    took_s: float


def storm(
    version: SlurmVersion,
    faults: Sequence[Fault],
    *,
    runs: int,
    say: Say,
    wreck: Path | None = None,
) -> Result:
    """Let runs train through the faults, and judge what is left.

    Args:
        version: The Slurm to run.
        faults: From `schedule`.
        runs: How many there are.
        say: Takes a line for each fault.
        wreck: Where to put the runs and all logs if something is wrong.
    """
    began = time.monotonic()
    with Cluster(config(version, runs)) as cluster:
        world = World(cluster, runs)
        strikes = [Strike(fault=fault) for fault in faults]
        evidence, found = _judged(world, strikes, say)
        if found:
            say(remains.inquest(world))
        if found and wreck:
            remains.keep(world, wreck)
        world.close()
    found += remains.not_gone(cluster.work)
    took_s = time.monotonic() - began
    return Result(strikes=strikes, runs=evidence, problems=found, took_s=took_s)


def _judged(world: World, strikes: Sequence[Strike], say: Say) -> tuple[list[Evidence], list[str]]:
    """What the runs left, and all that is wrong with it."""
    if found := _train(world, strikes, say):
        return [], found
    evidence = [remains.evidence(world, run, strikes) for run in world.runs]
    found = remains.left(world)
    for run in evidence:
        found += [f"{world.runs[run.number].name}: {text}" for text in problems(run)]
    return evidence, found


def _train(world: World, strikes: Sequence[Strike], say: Say) -> list[str]:
    """Submit, strike, and wait for the end; what went wrong."""
    for run in world.runs:
        world.submit(run)
    for number in range(WATCHERS):
        world.start_watcher(number)
    lanes = [
        [s for s in strikes if s.fault.run == run.number and not s.fault.traits.weather]
        for run in world.runs
    ]
    lanes.append([s for s in strikes if s.fault.traits.weather])
    found: list[str] = []
    threads = [threading.Thread(target=_lane, args=(world, lane, found, say)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found or _finish(world, say)


def _lane(world: World, strikes: Sequence[Strike], found: list[str], say: Say) -> None:
    """Faults one after the other, each at its moment."""
    since, attempt = 0.0, 0
    try:
        for strike in strikes:
            run = world.runs[strike.fault.run]
            _await_moment(world, run, strike.fault, since=since, attempt=attempt)
            attempt = run.attempt
            _strike(world, run, strike)
            since = strike.until = time.time()
            say(f"{datetime.now():%H:%M:%S} {strike.text}")
    except StoppedError:
        return
    except Exception as problem:
        found.append(f"{strike.text}: {type(problem).__name__}: {problem}")
        world.stopped.set()


def _strike(world: World, run: Run, strike: Strike) -> None:
    inject = (FAULTS | WEATHER)[strike.fault.kind]
    try:
        inject(world, run, strike)
    except MissedError as problem:
        strike.what = f"{strike.what} {problem}".strip()


def _await_moment(world: World, run: Run, fault: Fault, *, since: float, attempt: int) -> None:
    """Return when a fault is to strike.

    Args:
        world: Everything.
        run: Whose moment it is.
        fault: What is to strike.
        since: When the fault before was mended; steps count from there.
        attempt: The newest attempt before that one.
    """
    steps = run.tails[0].steps_since
    what = f"{run.name} is back, for fault {fault.number} ({fault.kind}, {fault.moment})"
    world.wait(lambda: run.attempt, BACK_S, what)
    if fault.moment == "starting":
        world.wait(lambda: run.attempt > attempt or steps(since) >= NOT_ENDED, BACK_S, what)
    elif fault.moment == "down":
        world.waited(lambda: run.attempt and run.left(run.attempt), MEET_S)
    elif fault.moment != "at once":
        world.wait(lambda: steps(since) >= fault.steps, BACK_S, what)
        if fault.moment == "saving":
            world.wait(lambda: any(run.layout.checkpoints.glob("*.tmp-*")), BACK_S, what)


def _finish(world: World, say: Say) -> list[str]:
    """Let the runs come to their end in peace."""
    for run in world.runs:
        goal = run.step + MORE_STEPS
        world.cluster.run(["sh", "-c", 'echo "$1" >"$0.new"; mv "$0.new" "$0"', *_goal(run, goal)])
    say(f"{datetime.now():%H:%M:%S}     no more faults; the runs have {MORE_STEPS} steps to go")
    try:
        for run in world.runs:
            world.wait(run.layout.finished.exists, BACK_S, f"{run.name} finishes")
    except TimeoutError as problem:
        return [str(problem)]
    return []


def _goal(run: Run, goal: int) -> tuple[str, str]:
    return str(run.ledger / "goal"), str(goal)
