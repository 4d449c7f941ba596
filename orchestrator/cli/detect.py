"""`fsdpq sites detect`."""

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.main import echo_json, json_option
from orchestrator.detect import found, writing
from orchestrator.detect.choosing import Wish
from orchestrator.detect.found import Probe
from orchestrator.detect.site import Detected
from orchestrator.errors import ProfileError, QueryError
from orchestrator.home import own_sites
from orchestrator.interrupts import as_exceptions, exit_code
from orchestrator.printable import printable
from orchestrator.profile import SiteProfile, read_profile
from orchestrator.report.columns import columns
from orchestrator.slurm.asking import Slurm

_STDOUT = Path("-")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("detect")
@click.option("--name", metavar="N", help="Of the profile; the cluster's own if not given.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="P",
    help="Only these partitions; the first is the default one. May be given several times.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="The file; without it one in your folder of profiles, and `-` prints it.",
)
@click.option("--node", is_flag=True, help="Also run a job of a few minutes on a compute node.")
@click.option(
    "--nodes", type=click.IntRange(1, 2), default=1, show_default=True, help="For --node."
)
@click.option("--account", metavar="A", help="For --node; Slurm's default if not given.")
@click.option(
    "--wait",
    "wait_min",
    type=click.FloatRange(min=0.1),
    default=15.0,
    show_default=True,
    help="Minutes that --node may wait for a node.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@json_option
def detect_command(
    name: str | None,
    partitions: tuple[str, ...],
    output: Path | None,
    node: bool,
    nodes: int,
    account: str | None,
    wait_min: float,
    force: bool,
    as_json: bool,
) -> None:
    """Ask Slurm what this cluster is, and write a site profile of it.

    Run it on a login node. It reads partitions, GPUs, limits and preemption, and with --node what
    a compute node shows of its network. Each value of the profile says how it was found.
    """
    wish = Wish(name=_checked(name), partitions=partitions)

    def ready(found: Detected) -> None:
        if output != _STDOUT:
            writing.check_free(_path(found, output), force=force)

    if output is not None and output != _STDOUT:
        writing.check_free(output, force=force)  # before anybody waits for Slurm, ...
    probe = Probe(nodes=nodes, account=account, wait_s=wait_min * 60) if node else None
    try:
        with as_exceptions():
            detected = detect(wish, Slurm(say), probe, ready=ready)  # ... and for a node
    except KeyboardInterrupt as interrupt:
        with suppress(OSError):  # the terminal may be what went away
            say("\ninterrupted; no profile was written")
        raise click.exceptions.Exit(exit_code(interrupt)) from None
    if output == _STDOUT and not as_json:
        _say_left_out(detected)
        click.echo(writing.as_yaml(detected.data), nl=False)
        return
    path = None if output == _STDOUT else write(detected, output, force=force)
    if as_json:
        echo_json(_as_json(detected, path))
        return
    show(detected)
    click.echo(f"wrote {path}")
    site = detected.data["name"] if output is None else str(path)
    click.echo(f"next: fsdpq init --site {shlex.quote(site)}")


def _checked(name: str | None) -> str | None:
    """Refuse a name that leads out of the folder of profiles, or that a shell would take apart.

    Raises:
        ProfileError: It is one.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ProfileError(
            f"--name: {name!r} is no name of a profile; use letters, digits, '.', '_' and '-', a"
            " letter or digit first; for another folder use -o"
        )
    return name


def say(text: str) -> None:
    """Tell how it gets on."""
    click.echo(text, err=True)


def detect(
    wish: Wish,
    slurm: Slurm,
    probe: Probe | None = None,
    *,
    ready: Callable[[Detected], object] = lambda _: None,
) -> Detected:
    """Return what this cluster is; how it gets on goes to standard error. See `found.find`.

    Raises:
        ProfileError: It is none, or has nothing for this user.
    """
    try:
        return found.find(wish, probe, slurm=slurm, say=say, ready=ready)
    except QueryError as problem:
        raise ProfileError(
            f"Slurm does not show its partitions here: {problem}. Try again on a login node;"
            " `fsdpq init --site local` is for this machine alone"
        ) from None


def write(detected: Detected, output: Path | None, *, force: bool) -> Path:
    """Write the profile and return its path.

    Raises:
        InputError: There is a file already, or it cannot be written.
    """
    path = _path(detected, output)
    writing.put(path, writing.as_yaml(detected.data), force=force, check=read_profile)
    return path


def _path(detected: Detected, output: Path | None) -> Path:
    return output or own_sites() / f"{detected.data['name']}.yaml"


def _as_json(detected: Detected, path: Path | None) -> dict[str, Any]:
    where = None if path is None else str(path)
    return {"path": where, "left_out": list(detected.left_out), "profile": detected.data}


def show(detected: Detected) -> None:
    """Print what was found as a table."""
    profile = found.profile_of(detected)
    rows: list[tuple[str, ...]] = [("PARTITION", "NODES", "GPUS", "LIMIT", "PREEMPTION")]
    rows += [_row(name, profile, detected.data) for name in profile.partitions]
    click.echo(profile.description)
    click.echo(columns(rows))
    _say_left_out(detected)


def _say_left_out(detected: Detected) -> None:
    for text in detected.left_out:
        click.echo(f"left out: {printable(' '.join(text.split()))}", err=True)


def _row(name: str, profile: SiteProfile, data: Mapping[str, Any]) -> tuple[str, ...]:
    partition = profile.partitions[name]
    gpu = partition.gpu or profile.gpu
    preempt: str = partition.preempt
    if partition.grace_s:
        preempt = f"{preempt}, {partition.grace_s} s after its notice"
    return (
        f"{name}*" if name == profile.default_partition else name,
        str(partition.nodes or "?"),
        f"{gpu.per_node} x {gpu.model}" if gpu else "-",
        str(data["partitions"][name].get("time_limit", "none")),
        preempt,
    )
