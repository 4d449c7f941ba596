"""Watch one run and print how it gets on, until it is over."""

import sys
import time

import click

from orchestrator import report
from orchestrator.answers import status
from orchestrator.decide import Over, Restart
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.watching import watch
from orchestrator.watching.watch import Outcome

# More runs than anybody reads the steps of.
_MANY = 20


class Printer:
    """Prints a line whenever a run has got on, and ``none`` where there are no runs at all.

    Attributes:
        last: The line that was printed last for each run, without its clock.
    """

    def __init__(self, none: str = "") -> None:
        self.last: dict[str, str] = {}
        self._none = none

    def show(self, outcomes: list[Outcome]) -> bool:
        """Print what is new; return whether all runs are over."""
        if not outcomes and self._none:
            click.echo(self._none, err=True)
        for outcome in outcomes:
            self._once(outcome.sight.layout.name, _line(outcome, many=len(outcomes) > _MANY))
            if outcome.note or isinstance(outcome.action, Restart):
                name = outcome.sight.layout.name
                note = f"{outcome.action.why}: {outcome.note}" if outcome.note else ""
                self._once(f"{name} note", f"{name}  {note}")
        return all(_is_over(outcome) for outcome in outcomes)

    def _once(self, key: str, text: str) -> None:
        if self.last.get(key) != text:
            self.last[key] = text
            click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)


def _is_over(outcome: Outcome) -> bool:
    """Return whether nothing is left to be done: also what was decided has been done."""
    return isinstance(outcome.action, Over) and not outcome.note


def _line(outcome: Outcome, *, many: bool) -> str:
    """Return where a run stands; of many of them only the state, which needs no look at disks."""
    if many:
        return f"{outcome.sight.layout.name}  {report.state(outcome.action)}"
    return report.progress(status.of(outcome.sight, outcome.action))


def follow(layout: RunLayout, plan: LaunchPlan, *, every_s: float = 2.0) -> None:
    """Watch the run until it is over; exit with 1 if it did not finish."""
    runs = [(layout, plan)]
    watch.loop(lambda: runs, every_s=every_s, show=Printer().show)
    item = status.of(*watch.look(runs)[0])
    click.echo(report.details(item))
    if item.state != "finished":
        sys.exit(1)
