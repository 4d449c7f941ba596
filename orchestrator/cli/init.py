"""`fsdpq init`: from nothing to a job file, with three questions at most."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

import orchestrator
from orchestrator import first_job
from orchestrator.cli import detect
from orchestrator.cli.main import echo_json, json_option, main
from orchestrator.detect import found, writing
from orchestrator.detect.choosing import Wish
from orchestrator.errors import SpecError
from orchestrator.first_job import Answers
from orchestrator.home import own_sites
from orchestrator.profile import SiteProfile, load_profile, own_names
from orchestrator.spec.job import load_job

_WORKERS = 2
_OWN_TRAINER = "own"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Site:
    """A site: what the job file calls it, and its profile."""

    word: str
    profile: SiteProfile


@main.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--site", metavar="S", help="A profile; without it this cluster is looked at.")
@click.option("--name", metavar="N", help="Of the run; the folder's name if not given.")
@click.option(
    "--script",
    metavar="FILE",
    help=f"Your training script; `{_OWN_TRAINER}` takes fsdpq's own trainer.",
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="How many nodes.")
@click.option("--account", metavar="A", help="The account that the job counts for.")
@click.option("--partition", metavar="P", help="Another than the profile's default one.")
@click.option("--yes", is_flag=True, help="Ask nothing; take what is not given as it comes.")
@click.option("--force", is_flag=True, help="Write over a job file that is there.")
@json_option
def init_command(
    directory: Path,
    site: str | None,
    name: str | None,
    script: str | None,
    nodes: int | None,
    account: str | None,
    partition: str | None,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a first job file into DIRECTORY, for this cluster.

    On a machine without Slurm it is for this machine. At most three questions are asked: which
    training script, how many nodes, and which account, where you have several.
    """
    path = directory / "job.yaml"
    if not force and os.path.lexists(path):
        raise SpecError(f"{path}: is there already; --force writes it anew")
    where = _site(site, quiet=as_json)
    ask = _Asker(yes=yes)
    known = Answers(name="x", site=where.word, partition=partition)
    most = first_job.most_nodes(where.profile, first_job.partition_of(known, where.profile))
    if most is not None and nodes is not None and nodes > most:
        raise SpecError(f"--nodes: {nodes} are more than {where.profile.name} gives a job ({most})")
    program = _script(ask, script, directory)
    several = _nodes(ask, nodes, most)
    answers = Answers(
        name=name or first_job.run_name(directory.absolute().name),
        site=where.word,
        nodes=several,
        script=program,
        account=_account(ask, account, where.profile, partition),
        partition=partition,
        text=f"{Path(orchestrator.__file__).parent}/**/*.py",
        workers=_WORKERS if where.profile.scheduler == "local" else None,
    )
    _write(path, first_job.job_file(answers, where.profile), force=force)
    if as_json:
        echo_json(
            {"job": str(path), "site": where.word, "nodes": several, "account": answers.account}
        )
        return
    click.echo(f"wrote {path}")
    click.echo(f"next: fsdpq submit {shlex.quote(str(path))}")


def _site(site: str | None, *, quiet: bool) -> _Site:
    """Return the site: as wished, this machine where there is no Slurm, else this cluster."""
    own = own_sites()
    if site is not None:
        profile = load_profile(site, base=Path.cwd(), own=own)
        is_path = site.endswith((".yaml", ".yml")) or "/" in site
        return _Site(str(Path(site).expanduser().absolute()) if is_path else site, profile)
    if shutil.which("scontrol") is None:
        click.echo("no Slurm here (no scontrol on PATH): the job is for this machine", err=True)
        return _Site("local", load_profile("local", base=Path.cwd(), own=None))
    detected = detect.detect(Wish())
    name = str(detected.data["name"])
    if name in own_names(own):
        click.echo(f"site {name}: {own}/{name}.yaml is there already, and is used", err=True)
        return _Site(name, load_profile(name, base=Path.cwd(), own=own))
    path = detect.write(detected, None, force=False)
    if not quiet:
        detect.show(detected)
    click.echo(f"site {name}: wrote {path}", err=True)
    return _Site(name, load_profile(name, base=Path.cwd(), own=own))


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks on the terminal, or takes the default."""

    yes: bool

    def ask(self, text: str, default: str) -> str:
        """Return the answer.

        Raises:
            UsageError: There is nobody to answer.
        """
        if self.yes:
            return default
        try:
            return str(click.prompt(text, default=default, err=True)).strip()
        except click.Abort:
            raise click.UsageError(
                "there is no answer to that question; --yes takes the defaults, and each question"
                " has an option (--script, --nodes, --account)"
            ) from None

    def until_right(self, text: str, default: str, read: Callable[[str], T]) -> T:
        """Return what ``read`` makes of the answer; on a terminal a wrong one is asked for again.

        Raises:
            SpecError: The answer is wrong, and nobody is there to give another.
            UsageError: There is nobody to answer.
        """
        while True:
            answer = self.ask(text, default)
            try:
                return read(answer)
            except SpecError as problem:
                if self.yes or not sys.stdin.isatty():
                    raise
                click.echo(f"Error: {problem}", err=True)


def _script(ask: _Asker, given: str | None, directory: Path) -> str | None:
    """Return the script as the job file names it; None for the own trainer.

    Raises:
        SpecError: There is no such file.
    """
    if given is not None:
        return _script_file(given, directory)
    question = "Training script (own: fsdpq's own trainer, a small Llama)"
    return ask.until_right(question, _OWN_TRAINER, lambda text: _script_file(text, directory))


def _script_file(text: str, directory: Path) -> str | None:
    if text == _OWN_TRAINER:
        return None
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise SpecError(f"--script: there is no file {path}")
    folder = directory.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _nodes(ask: _Asker, given: int | None, most: int | None) -> int:
    """Return how many nodes.

    Raises:
        SpecError: The answer is no such number.
    """
    if given is not None or most == 1:
        return given or 1
    upto = f", up to {most}" if most else ""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= (most or int(text)):
            raise SpecError(f"--nodes: {text!r} is no number of nodes{upto}")
        return int(text)

    return ask.until_right(f"Nodes{upto}", "2", read)


def _account(
    ask: _Asker, given: str | None, profile: SiteProfile, partition: str | None
) -> str | None:
    """Return the account to name; None where Slurm knows by itself."""
    if given is not None or profile.scheduler == "local":
        return given
    choice, default = found.accounts_for(partition or profile.default_partition)
    if len(choice) < 2:
        # The only one that this partition takes may not be what Slurm would take.
        needed = bool(choice) and (choice[0] != default or profile.account_required)
        return choice[0] if needed else None

    def read(text: str) -> str:
        if text not in choice:
            raise SpecError(f"--account: {text!r} is none of yours there: {', '.join(choice)}")
        return text

    return ask.until_right(f"Account ({', '.join(choice)})", choice[0], read)


def _write(path: Path, text: str, *, force: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writing.put(path, text, force=force, check=load_job)
