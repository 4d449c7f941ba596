"""Which runs a command is about."""

from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator import store
from orchestrator.errors import RunError
from orchestrator.layout import RunLayout
from orchestrator.plan import LaunchPlan


def chosen_runs(
    names: Sequence[str], runs: Path, *, told: set[str]
) -> list[tuple[RunLayout, LaunchPlan]]:
    """Return the runs called ``names``, or all that read; a broken one does not hide the others.

    Args:
        names: Runs; all of them if empty.
        runs: Where the run directories are.
        told: What was said of broken ones already; it is added to, and said once.
    """
    if names:
        layouts = [store.find(name, runs=runs) for name in names]
        return [(layout, store.load_plan(layout)) for layout in layouts]
    found = []
    for layout in store.all_runs(runs):
        try:
            found.append((layout, store.load_plan(layout)))
        except RunError as error:
            if str(error) not in told:
                told.add(str(error))
                click.echo(f"passed over: {error}", err=True)
    return found
