"""`fsdpq diagnose`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from orchestrator.answers import diagnose
from orchestrator.cli.bench import bench
from orchestrator.cli.main import echo_json, json_option, main, runs_option
from orchestrator.errors import RunError
from orchestrator.fabric.diagnosis import Diagnosis
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.text import describe
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store


@main.command("diagnose")
@click.argument("what", nargs=-1, metavar="RUN|FILE...")
@runs_option
@click.option("--attempt", type=click.IntRange(min=1), help="Of a run; the newest by default.")
@click.option(
    "--site", metavar="S", help="What to expect: a site profile; that of the run by default."
)
@click.option(
    "--bench",
    "job",
    metavar="JOB",
    type=click.Path(path_type=Path),
    help="Measure the bandwidth instead: on the nodes of this job file, as a short job.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="With --bench: a key of the job."
)
@click.option("--nodes", type=click.IntRange(min=1), help="With --bench: how many nodes.")
@json_option
def diagnose_command(
    what: tuple[str, ...],
    runs: Path,
    attempt: int | None,
    site: str | None,
    job: Path | None,
    overrides: tuple[str, ...],
    nodes: int | None,
    as_json: bool,
) -> None:
    """Say which network was used, with GPUDirect or without, and what failed first.

    Takes a run, or any logs of NCCL and torch (files, or folders of them). Exits with 1 where they
    say nothing of the network and of no error.

    With --bench it measures the bandwidth between the nodes of a job, and names a slow node or
    pair.
    """
    if job is not None:
        _refuse(bool(what) or attempt is not None, "--bench takes a job file, and no run or logs")
        bench(job, site=site, overrides=overrides, nodes=nodes, runs=runs, as_json=as_json)
        return
    _refuse(bool(overrides) or nodes is not None, "--set and --nodes go with --bench JOB")
    _refuse(not what, "name a run, or log files; or measure with --bench JOB")
    found = _found(what, runs, attempt, diagnose.of_site(site) if site else None)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(describe(found))
    if found.verdict == "unknown":
        sys.exit(1)


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise click.UsageError(message)


def _found(
    what: Sequence[str], runs: Path, attempt: int | None, wanted: Promise | None
) -> Diagnosis:
    if (run := _run(what, runs)) is not None:
        return diagnose.of_run(run, attempt, wanted)
    if attempt is not None:
        raise click.UsageError("--attempt goes with a run, and this is none")
    return diagnose.of_files([Path(name) for name in what], wanted)


def _run(what: Sequence[str], runs: Path) -> RunLayout | None:
    """Return the run that is meant; None where files are."""
    if len(what) > 1:
        return None
    try:
        return store.find(what[0], runs=runs)
    except RunError:
        if not Path(what[0]).exists():
            raise
    return None
