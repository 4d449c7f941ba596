"""Which runs a command is about."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from orchestrator.errors import RunError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store


@dataclass(frozen=True, slots=True)
class _Read:
    """A run that was read, with the inode and the time of its plan then.

    Plans never change, but a run may take the place of one of the same name that was deleted.
    """

    version: tuple[int, int]
    run: tuple[RunLayout, LaunchPlan]


Known = dict[str, _Read]


def chosen_runs(
    names: Sequence[str], runs: Path, *, told: set[str], known: Known | None = None
) -> list[tuple[RunLayout, LaunchPlan]]:
    """Return the runs called ``names``, or all that read; a broken one does not hide the others.

    Args:
        names: Runs; all of them if empty.
        runs: Where the run directories are.
        told: What was said of broken ones already; it is added to, and said once.
        known: Runs that were read before; it is added to.
    """
    read: Known = {} if known is None else known
    if names:
        return [_named(name, runs, read) for name in names]
    try:
        listed = store.names(runs)
    except OSError:
        # A file system that is away for a while: what was there is not over for that.
        return [before.run for before in read.values()]
    folder, found = str(runs.absolute()), []
    for name in listed:
        try:
            found.append(_read(f"{folder}/{name}", read))
        except RunError as error:
            if str(error) not in told:
                told.add(str(error))
                click.echo(f"passed over: {error}", err=True)
    return [run for run in found if run is not None]


def _named(name: str, runs: Path, known: Known) -> tuple[RunLayout, LaunchPlan]:
    """Return the run called ``name``, also one that was there and cannot be looked at just now.

    Raises:
        RunError: There is none, or it does not read.
    """
    try:
        layout = store.find(name, runs=runs)
        known[name] = _Read((0, 0), (layout, store.load_plan(layout)))
    except RunError:
        if name not in known:
            raise
    return known[name].run


def _read(path: str, known: Known) -> tuple[RunLayout, LaunchPlan] | None:
    """Return the run in the directory ``path``; None where there is none of ours.

    Raises:
        RunError: It does not read.
    """
    before = known.get(path)
    try:
        plan = os.stat(f"{path}/plan.json")  # noqa: PTH116 (a Path costs more than the look)
    except OSError:
        return before.run if before else None
    version = (plan.st_ino, plan.st_mtime_ns)
    if before is None or before.version != version:
        layout = RunLayout(Path(path))
        before = known[path] = _Read(version, (layout, store.load_plan(layout)))
    return before.run
