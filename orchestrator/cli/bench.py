"""`fsdpq diagnose --bench`: measure the bandwidth between the nodes of a job."""

import time
from pathlib import Path

import click

from orchestrator import interrupts, report
from orchestrator.answers import bandwidth_job
from orchestrator.answers.bandwidth_job import Measured
from orchestrator.bandwidth import find
from orchestrator.cli.main import echo_json
from orchestrator.errors import RunError
from orchestrator.submitting.launch import Launch

_ONE_NODE = (
    "one node: this measures between its own GPUs, and says nothing of the network between nodes;"
    " --nodes N takes more"
)


def bench(
    job: Path,
    *,
    site: str | None,
    overrides: tuple[str, ...],
    nodes: int | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Run the sweep as a short job of its own, and print what it measured.

    Raises:
        FsdpqError: The job file is wrong, Slurm refuses it, or the sweep did not come to its end.
    """
    prepared = bandwidth_job.prepare(job, runs=runs, site=site, overrides=overrides, nodes=nodes)
    for note in prepared.notes:
        click.echo(f"note: {note}", err=True)
    if prepared.plan.nodes == 1:
        click.echo(f"note: {_ONE_NODE}", err=True)
    try:
        measured = bandwidth_job.measure(prepared, show=_say)
    except KeyboardInterrupt as interrupt:
        raise click.exceptions.Exit(interrupts.exit_code(interrupt)) from None
    _print(prepared, measured, as_json=as_json)
    if measured.trouble:
        raise RunError(f"{prepared.layout.name}: {measured.trouble}")


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)


def _print(prepared: Launch, measured: Measured, *, as_json: bool) -> None:
    """Print what there is, also of a sweep that broke off."""
    record = measured.record
    if as_json:
        run = {"run": prepared.layout.name, "run_dir": str(prepared.layout.root)}
        found = {**record.to_json(), "finding": find(record).to_json()} if record else {}
        echo_json({**run, **found, "trouble": measured.trouble or None})
    elif record is not None:
        click.echo(report.bandwidth_table(record))
