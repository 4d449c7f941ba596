"""`fsdpq plan`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import click

from orchestrator.answers.forecasting import Outlook, outlook
from orchestrator.cli.main import echo_json, json_option, main, runs_option
from orchestrator.planner import lines

_WIDTH = 100


@main.command("plan")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--site", metavar="S", help="Site profile: a shipped name or the path of a file.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the job file, such as train.micro_batch=2.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="So many nodes instead of the job's.")
@click.option("--gpu", metavar="NAME", help="This GPU instead of the site's, such as H100-80.")
@runs_option
@json_option
def plan_command(
    job: Path,
    site: str | None,
    overrides: tuple[str, ...],
    nodes: int | None,
    gpu: str | None,
    runs: Path,
    as_json: bool,
) -> None:
    """Say what JOB will need and how fast it will be; start nothing.

    Memory of a GPU, the fewest nodes that will do, time of a step, checkpoints, and whether Slurm
    would take the job. Torch is not needed. What is said of memory is computed from what the
    trainer does; what is said of speed comes from measurements of others and may be far off. The
    exit code is 1 where the job does not fit or Slurm would refuse it.
    """
    found = outlook(job, runs=runs, site=site, overrides=overrides, nodes=nodes, gpu=gpu)
    if as_json:
        echo_json(found.to_json())
    else:
        for line in _text(found):
            click.echo(line)
    if found.hopeless:
        sys.exit(1)


def _text(found: Outlook) -> Iterator[str]:
    if found.forecast is not None:
        yield from lines(found.forecast)
    for one in found.notes:
        yield f"Note: {one}"
    for one in found.unknown:
        yield f"Not known: {one}."
    if found.accepted is not None:
        yield from _said(f"Slurm would {'take' if found.accepted else 'refuse'} it:", found.slurm)
    elif found.slurm:
        yield from _said("Whether Slurm would take it is not known:", found.slurm)


def _said(head: str, words: str) -> Iterator[str]:
    """Yield Slurm's words after ``head``, or below it if they take several lines."""
    if len(head) + len(words) < _WIDTH and "\n" not in words:
        yield f"{head} {words}"
        return
    yield head
    for line in words.splitlines():
        yield from wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
