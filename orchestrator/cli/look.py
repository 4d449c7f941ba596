"""`fsdpq status`, `fsdpq logs` and `fsdpq checkpoints`."""

from pathlib import Path

import click

from orchestrator import checkpoint, report
from orchestrator.answers import status
from orchestrator.checkpoint import Checkpoint
from orchestrator.cli.chosen import chosen_runs
from orchestrator.cli.main import echo_json, json_option, main, runs_option
from orchestrator.errors import RunError
from orchestrator.runstore import logs, store
from orchestrator.runstore.history import history
from orchestrator.watching import watch


@main.command("status")
@click.argument("run", required=False)
@runs_option
@json_option
def status_command(run: str | None, runs: Path, as_json: bool) -> None:
    """Show RUN, or all runs: attempts, step, why it waits, what happens next."""
    found = chosen_runs([run] if run is not None else [], runs, told=set())
    whole = run is not None
    items = [status.of(sight, action, whole=whole) for sight, action in watch.look(found)]
    if as_json:
        data = [item.to_json() for item in items]
        echo_json(data if run is None else data[0])
    elif run is not None:
        click.echo(report.details(items[0]))
    elif items:
        click.echo(report.overview(items))
    else:
        click.echo(f"no runs in {runs}")


@main.command("logs")
@click.argument("run")
@runs_option
@click.option("--attempt", type=click.IntRange(min=1), help="The attempt; the newest by default.")
@click.option("--rank", type=click.IntRange(min=0), help="One rank instead of the whole job.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as the log grows.")
def logs_command(
    run: str, runs: Path, attempt: int | None, rank: int | None, following: bool
) -> None:
    """Print what RUN printed: the whole job, or one rank of one attempt."""
    layout = store.find(run, runs=runs)
    plan = store.load_plan(layout)
    paths = logs.files(layout, attempt=attempt, rank=rank, nproc_per_node=plan.nproc_per_node)
    for text in logs.read(paths, following=following, over=lambda: _over(run, runs)):
        click.echo(text, nl=False)


def _over(run: str, runs: Path) -> bool:
    layout = store.find(run, runs=runs)
    gave_up = history(store.events(layout)).gave_up is not None
    return layout.finished.exists() or layout.cancelled.exists() or gave_up


def _checkpoints(run: str, runs: Path) -> Path:
    """Return the folder that is meant: of a run, which goes before a folder of its name."""
    path = Path(run)
    try:
        return store.find(run, runs=runs).checkpoints
    except RunError:
        if not path.is_dir():
            raise
        return path.absolute()


@main.command("checkpoints")
@click.argument("run")
@runs_option
@click.option("--verify", is_flag=True, help="Compare the hashes too; reads every byte.")
@json_option
def checkpoints_command(run: str, runs: Path, verify: bool, as_json: bool) -> None:
    """Show each checkpoint of RUN, or in a directory: complete, or why not."""
    folder = _checkpoints(run, runs)
    found = checkpoint.list_checkpoints(folder, verify=verify)
    chosen = checkpoint.wanted(found)
    resume = chosen.step if chosen is not None and chosen.complete else None
    if as_json:
        echo_json({"resume": resume, "checkpoints": [_json(item) for item in found]})
        return
    if not found:
        click.echo(f"no checkpoints in {folder}")
        return
    rows = [("STEP", "COMPLETE", "PATH", "REASON")]
    rows += [(str(c.step), "yes" if c.complete else "no", str(c.path), c.reason) for c in found]
    click.echo(report.columns(rows))
    click.echo(_resume(chosen, verify=verify))


def _resume(chosen: Checkpoint | None, *, verify: bool) -> str:
    if chosen is not None and not chosen.complete:
        return (
            f"a resume would end: step {chosen.step} cannot be read, and may be sound. Mount or"
            " mend it, or move it out of the directory to go on from an older one"
        )
    if chosen is None:
        return "a resume would end: none of these is of use, and it does not start again at step 0"
    how = "" if verify else " (by file sizes; --verify reads every byte, as a resume does)"
    return f"a resume would use step {chosen.step}{how}"


def _json(item: Checkpoint) -> dict[str, object]:
    return {
        "step": item.step,
        "path": str(item.path),
        "complete": item.complete,
        "reason": item.reason,
        "unread": item.unread,
    }
