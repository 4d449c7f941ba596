"""The one loop: look, decide, act, record. Stateless, so any number of these may run at once."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from orchestrator.decide import Action, Exclude, Over, StartNow, Wait, decide
from orchestrator.errors import FsdpqError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.local.scheduler import LocalScheduler
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import Scheduler
from orchestrator.slurm.client import SlurmScheduler
from orchestrator.watching import act, observe

START_NOW_EVERY_S = 2.0
# How long a single pass stays for what changes soon; the next one goes on from there.
SETTLED_S = 30.0

Runs = Sequence[tuple[RunLayout, LaunchPlan]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass found for one run, and what it did about it."""

    sight: Sight
    action: Action
    note: str = ""


def scheduler_of(kind: str, runs: Runs) -> Scheduler:
    """Return the scheduler of ``runs``, all of one ``kind``."""
    if kind == "local":
        # As the scripts know the run, and not by the path that it was asked for by.
        return LocalScheduler({plan.job_name: RunLayout(Path(plan.run_dir)) for _, plan in runs})
    return SlurmScheduler(os.getuid())


def look(runs: Runs) -> list[tuple[Sight, Action]]:
    """Return what is seen of each run and what is to be done about it; does nothing."""
    groups = _by_scheduler(runs, whole=True)
    return [(sight, _decided(sight)) for _, sights in groups for sight in sights]


def _by_scheduler(runs: Runs, *, whole: bool) -> Iterator[tuple[Scheduler, list[Sight]]]:
    ordered = sorted(runs, key=lambda run: run[1].scheduler)
    for kind, group in groupby(ordered, key=lambda run: run[1].scheduler):
        members = list(group)
        scheduler = scheduler_of(kind, members)
        yield scheduler, observe.look(members, scheduler, whole=whole)


def once(runs: Runs) -> list[Outcome]:
    """Look at all runs once and do what is to be done."""
    return [
        _outcome(sight, scheduler)
        for scheduler, sights in _by_scheduler(runs, whole=False)
        for sight in sights
    ]


def _outcome(sight: Sight, scheduler: Scheduler) -> Outcome:
    try:
        sight = act.catch_up(sight)
    except (FsdpqError, OSError) as error:  # other runs want looking after
        return Outcome(sight, _decided(sight), str(error))
    action = _decided(sight)
    return Outcome(sight, action, act.act(sight, action, scheduler))


def _decided(sight: Sight) -> Action:
    return decide(sight.seen, sight.past, sight.policy)


def settled(runs: Runs) -> list[Outcome]:
    """Return `once`, repeated for what changes within seconds: jobs that are being put back."""
    outcomes = {outcome.sight.layout: outcome for outcome in once(runs)}
    until = time.monotonic() + SETTLED_S
    while waiting := [o for o in outcomes.values() if _changes_soon(o.action)]:
        if time.monotonic() > until:
            break
        time.sleep(START_NOW_EVERY_S)
        again = once([(o.sight.layout, o.sight.plan) for o in waiting])
        outcomes |= {outcome.sight.layout: outcome for outcome in again}
    return list(outcomes.values())


def _changes_soon(action: Action) -> bool:
    return isinstance(action, StartNow | Exclude) or (isinstance(action, Wait) and action.soon)


def until_back(layout: RunLayout, plan: LaunchPlan, *, timeout_s: float) -> None:
    """Look after a run that is being put back until its next attempt starts, or for so long."""
    before = facts.latest(layout)
    number = before.number if before else 0
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        action = once([(layout, plan)])[0].action
        newest = facts.latest(layout)
        if isinstance(action, Over) or (newest is not None and newest.number > number):
            return
        time.sleep(START_NOW_EVERY_S)


def loop(
    runs: Callable[[], Runs], *, every_s: float, show: Callable[[list[Outcome]], bool]
) -> None:
    """Look, act and ``show``, again and again, until ``show`` says that it is enough."""
    while True:
        outcomes = once(runs())
        if show(outcomes):
            return
        hurry = any(_changes_soon(outcome.action) for outcome in outcomes)
        time.sleep(min(every_s, START_NOW_EVERY_S) if hurry else every_s)
