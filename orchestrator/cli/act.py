"""`fsdpq watch`, `fsdpq cancel`, `fsdpq requeue` and `fsdpq drill`."""

from functools import partial
from pathlib import Path

import click

from orchestrator import report
from orchestrator.answers import drill, status
from orchestrator.cli.chosen import Known, chosen_runs
from orchestrator.cli.follow import Printer
from orchestrator.cli.main import echo_json, json_option, main, runs_option
from orchestrator.runstore import store
from orchestrator.watching import control, watch, watch_job

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
@click.option("--as-job", is_flag=True, help="As a small Slurm job that renews itself.")
@click.option("--stop-job", is_flag=True, help="End that job.")
@click.option("--partition", metavar="P", help="Of the job; Slurm's default if not given.")
@click.option("--account", metavar="A", help="Of the job; that of the runs if not given.")
@click.option("--time", "limit", metavar="T", help="Of one job, as sbatch reads it; 1 day.")
@json_option
def watch_command(
    run: tuple[str, ...],
    runs: Path,
    once: bool,
    every_s: float,
    as_job: bool,
    stop_job: bool,
    partition: str | None,
    account: str | None,
    limit: str | None,
    as_json: bool,
) -> None:
    """Look after RUN..., or all runs: restart what has to be restarted, until all are over.

    Any number of these may run at once, and any of them may be killed at any time.
    """
    if as_json and not once:
        raise click.UsageError("--json goes with --once")
    if once + as_job + stop_job > 1:
        raise click.UsageError("--once, --as-job and --stop-job do not go together")
    if not as_job and (partition or account or limit):
        raise click.UsageError("--partition, --account and --time go with --as-job")
    told: set[str] = set()
    if stop_job or as_job:
        plans = [] if stop_job else [plan for _, plan in chosen_runs(run, runs, told=told)]
        asked = {"partition": partition, "account": account, "time": limit}
        options = watch_job.options({k: v for k, v in asked.items() if v is not None}, plans)
        job = watch_job.describe(watch_job.absolute(runs), run, options=options, every_s=every_s)
        act = watch_job.stop if stop_job else watch_job.start
        click.echo(act(job, watch.scheduler_of("slurm", [])))
        return
    printer = Printer(none=f"no runs in {runs}")
    if not once:
        known: Known = {}
        choose = partial(chosen_runs, run, runs, told=told, known=known)
        watch.loop(choose, every_s=every_s, show=printer.show)
        return
    outcomes = watch.settled(chosen_runs(run, runs, told=told))
    if as_json:
        items = [(status.of(o.sight, o.action), o.note) for o in outcomes]
        echo_json([{**item.to_json(), "note": note} for item, note in items])
        return
    printer.show(outcomes)


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
