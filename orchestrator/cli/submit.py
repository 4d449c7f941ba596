"""`fsdpq render` and `fsdpq submit`."""

import shlex
from pathlib import Path

import click

from orchestrator.cli.follow import follow
from orchestrator.cli.main import echo_json, job_options, json_option, main, runs_option
from orchestrator.runstore import store
from orchestrator.submitting import launch
from orchestrator.submitting.launch import Launch


@main.command("render")
@job_options
@runs_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the files into this directory instead of printing the scripts.",
)
def render_command(
    job: Path,
    site: str | None,
    overrides: tuple[str, ...],
    live_code: bool,
    runs: Path,
    output: Path | None,
) -> None:
    """Write the scripts of JOB; submit nothing."""
    prepared = launch.prepare(job, runs=runs, site=site, overrides=overrides, live_code=live_code)
    _tell(prepared)
    if output is None:
        _print_scripts(prepared)
        return
    store.write_files(output, prepared.files)
    click.echo(f"wrote {', '.join(sorted(prepared.files))} to {output}")


def _tell(prepared: Launch) -> None:
    for note in prepared.notes:
        click.echo(note if note.startswith("warning") else f"note: {note}", err=True)


def _show(prepared: Launch, *, as_json: bool) -> None:
    if not as_json:
        _print_scripts(prepared)
        return
    layout = prepared.layout
    echo_json({"run": layout.name, "run_dir": str(layout.root), "files": prepared.files})


def _print_scripts(prepared: Launch) -> None:
    for name in ("script.sbatch", "node.sh"):
        click.echo(f"# ===== {prepared.layout.root / name}\n{prepared.files[name]}")


@main.command("submit")
@job_options
@runs_option
@click.option("--dry-run", is_flag=True, help="Print what would be submitted; submit nothing.")
@click.option("--follow", "following", is_flag=True, help="Watch the run until it is over.")
@json_option
def submit_command(
    job: Path,
    site: str | None,
    overrides: tuple[str, ...],
    live_code: bool,
    runs: Path,
    dry_run: bool,
    following: bool,
    as_json: bool,
) -> None:
    """Start a run of JOB."""
    if as_json and following:
        raise click.UsageError("--json and --follow do not go together; use `status --json` then")
    prepared = launch.prepare(job, runs=runs, site=site, overrides=overrides, live_code=live_code)
    _tell(prepared)
    if dry_run:
        _show(prepared, as_json=as_json)
        return
    job_id = launch.submit(prepared)
    layout = prepared.layout
    if as_json:
        echo_json({"run": layout.name, "job_id": job_id, "run_dir": str(layout.root)})
    else:
        click.echo(f"run {layout.name}: job {job_id}, in {layout.root}")
        if prepared.code.summary:
            click.echo(prepared.code.summary)
        if not following:
            where = "" if runs == Path("runs") else f" --runs {shlex.quote(str(runs))}"
            click.echo(f"fsdpq watch {layout.name}{where}   restarts it where its own shell cannot")
            click.echo(f"fsdpq status {layout.name}{where}  shows how it gets on")
    if following:
        follow(layout, prepared.plan)
