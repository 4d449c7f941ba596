"""`fsdpq watch`, `fsdpq cancel`, `fsdpq requeue` and `fsdpq drill`."""

from pathlib import Path

import click

from orchestrator import control, drill, report, status, store, watch
from orchestrator.cli.chosen import chosen_runs
from orchestrator.cli.follow import Printer
from orchestrator.cli.main import echo_json, json_option, main, runs_option

# How long `fsdpq requeue` stays to see a job saved and put back.
_BACK_S = 120.0


@main.command("watch")
@click.argument("run", nargs=-1)
@runs_option
@click.option("--once", is_flag=True, help="One pass, for cron or scrontab.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="Seconds between two passes.",
)
@json_option
def watch_command(
    run: tuple[str, ...], runs: Path, once: bool, every_s: float, as_json: bool
) -> None:
    """Look after RUN..., or all runs: restart what has to be restarted, until all are over.

    Any number of these may run at once, and any of them may be killed at any time.
    """
    if as_json and not once:
        raise click.UsageError("--json goes with --once")
    told: set[str] = set()
    if not once:
        watch.loop(lambda: chosen_runs(run, runs, told=told), every_s=every_s, show=Printer().show)
        return
    outcomes = watch.settled(chosen_runs(run, runs, told=told))
    if as_json:
        items = [(status.of(o.sight, o.action), o.note) for o in outcomes]
        echo_json([{**item.to_json(), "note": note} for item, note in items])
        return
    Printer().show(outcomes)


@main.command("cancel")
@click.argument("run")
@runs_option
@click.option("--now", is_flag=True, help="Do not wait for a save.")
def cancel_command(run: str, runs: Path, now: bool) -> None:
    """Save, then stop RUN for good. Nothing restarts it but `fsdpq requeue`."""
    layout = store.find(run, runs=runs)
    click.echo(control.cancel(layout, store.load_plan(layout), now=now))


@main.command("requeue")
@click.argument("run")
@runs_option
def requeue_command(run: str, runs: Path) -> None:
    """Save, then start RUN again now; also one that failed or was cancelled."""
    layout = store.find(run, runs=runs)
    plan = store.load_plan(layout)
    done = control.requeue(layout, plan)
    click.echo(done.text)
    if done.saving:  # Slurm adds two minutes to each requeue; stay until that is taken back
        watch.until_back(layout, plan, timeout_s=_BACK_S)


@main.command("drill")
@click.argument("run")
@runs_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    help="Seconds to wait for the first step after the restart.",
)
@json_option
def drill_command(run: str, runs: Path, timeout_s: float, as_json: bool) -> None:
    """Send RUN a notice as a preemption would, wait until it is back, and report what was lost."""
    layout = store.find(run, runs=runs)
    found = drill.drill(layout, store.load_plan(layout), timeout_s=timeout_s)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(report.drill(found))
