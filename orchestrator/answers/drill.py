"""Rehearse a preemption: notice, save, requeue, first new step; and measure it."""

import time

from orchestrator.decide import Wait
from orchestrator.errors import RunError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.report import DrillReport
from orchestrator.rundir.attempt import Attempt
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store
from orchestrator.watching import control, watch

_EVERY_S = 1.0


def drill(layout: RunLayout, plan: LaunchPlan, *, timeout_s: float) -> DrillReport:
    """Send a run the notice, keep watch until it trains again, and return what that cost.

    Raises:
        RunError: The run does not train now, ended meanwhile, or did not come back in time.
        SchedulerError: The scheduler refused or does not answer.
    """
    before = _training(layout, plan)
    sent_at = time.time()
    store.append(layout, "drill", attempt=before.number)
    control.requeue(layout, plan)
    after = _wait(layout, plan, before.number, until=sent_at + timeout_s)
    return _report(layout, before.number, after, sent_at)


def _training(layout: RunLayout, plan: LaunchPlan) -> Attempt:
    """Return the attempt that trains now.

    Raises:
        RunError: There is none.
    """
    if layout.finished.exists():
        raise RunError(
            f"{layout.name}: is finished; there is nothing left to stop. Start the drill while a"
            " run trains"
        )
    _, action = watch.look([(layout, plan)])[0]
    attempt = facts.latest(layout)
    runs = isinstance(action, Wait) and action.state == "running"
    if not runs or attempt is None or attempt.last_step is None or attempt.outcome:
        raise RunError(
            f"{layout.name}: reports no steps now ({action.why}); start the drill when it has done"
            " one (a script without orchestrator.runtime never reports any)"
        )
    return attempt


def _wait(layout: RunLayout, plan: LaunchPlan, number: int, *, until: float) -> Attempt:
    """Watch until an attempt after ``number`` has done a step, and return that attempt."""
    while time.time() < until:
        outcome = watch.once([(layout, plan)])[0]
        after = facts.latest(layout)
        if after is not None and after.number > number and after.last_step is not None:
            return after
        if layout.finished.exists():
            raise RunError(f"{layout.name}: finished before the notice could stop it")
        if outcome.sight.past.gave_up:
            raise RunError(f"{layout.name}: {outcome.sight.past.gave_up.why}")
        time.sleep(_EVERY_S)
    raise RunError(f"{layout.name}: did not train again in time; see `fsdpq status {layout.name}`")


def _report(layout: RunLayout, number: int, after: Attempt, sent_at: float) -> DrillReport:
    stopped = next(a for a in facts.attempts(layout) if a.number == number)
    stopped_at, resumed_at = stopped.last_step or 0, after.resumed or 0
    return DrillReport(
        run=layout.name,
        attempt=number,
        stopped_at=stopped_at,
        resumed_at=resumed_at,
        steps_lost=max(0, stopped_at - resumed_at),
        stop_s=None if stopped.ended_at is None else round(max(0.0, stopped.ended_at - sent_at), 1),
        down_s=round((after.heard_at or time.time()) - sent_at, 1),
    )
