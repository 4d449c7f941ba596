"""`fsdpq init`: from nothing to a job file, with three questions at most."""

import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

import orchestrator
from orchestrator import first_job
from orchestrator.cli import detect, questions
from orchestrator.cli.main import echo_json, interrupted, json_option, main
from orchestrator.cli.questions import OWN_TRAINER, Asker
from orchestrator.detect import found, writing
from orchestrator.detect.choosing import Wish
from orchestrator.detect.site import Detected
from orchestrator.errors import InputError, QueryError, SpecError
from orchestrator.first_job import Answers
from orchestrator.home import own_sites
from orchestrator.interrupts import as_exceptions
from orchestrator.keys.fields import run_name, sbatch_value
from orchestrator.profile import SiteProfile, load_profile, own_names
from orchestrator.slurm import asking
from orchestrator.slurm.asking import Slurm
from orchestrator.spec.job import load_job

_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """A site: what the job file calls it, and its profile.

    Attributes:
        slurm: Whom to ask about it.
        detected: The profile, if its file is still to be written.
    """

    word: str
    profile: SiteProfile
    slurm: Slurm
    detected: Detected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What the command line says."""

    name: str | None
    script: str | None
    nodes: int | None
    account: str | None
    partition: str | None


@main.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--site", metavar="S", help="A profile; without it this cluster is looked at.")
@click.option("--name", metavar="N", help="Of the run; the folder's name if not given.")
@click.option(
    "--script",
    metavar="FILE",
    help=f"Your training script; `{OWN_TRAINER}` takes fsdpq's own trainer.",
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
    writing.check_free(path, force=force)
    given = _Given(
        name=_plain("--name", name, run_name),
        script=script,
        nodes=nodes,
        account=_plain("--account", account, sbatch_value),
        partition=_plain("--partition", partition, sbatch_value),
    )
    try:
        with as_exceptions():
            where = _site(site, quiet=as_json)
            answers = _answers(given, where, directory, Asker(yes=yes))
    except KeyboardInterrupt as interrupt:
        raise interrupted(interrupt, "nothing was written") from None
    _write(path, answers, where, force=force)
    if as_json:
        told = {"site": where.word, "nodes": answers.nodes, "account": answers.account}
        echo_json({"job": str(path), **told})
        return
    click.echo(f"wrote {path}")
    click.echo(f"next: fsdpq submit {shlex.quote(str(path))}")


def _plain(option: str, value: str | None, check: Callable[[str], str]) -> str | None:
    """Return the value of an option.

    Raises:
        SpecError: The job file could not hold it.
    """
    try:
        return None if value is None else check(value)
    except ValueError as problem:
        raise SpecError(f"{option}: {value!r} {problem}") from None


def _site(site: str | None, *, quiet: bool) -> _Site:
    """Return the site: as wished, this machine where there is no Slurm, else this cluster."""
    own, slurm = own_sites(), Slurm(detect.say)
    if site is not None:
        profile = load_profile(site, base=Path.cwd(), own=own)
        is_path = site.endswith((".yaml", ".yml")) or "/" in site
        word = str(Path(site).expanduser().absolute()) if is_path else site
        return _Site(word=word, profile=profile, slurm=slurm)
    if shutil.which("scontrol") is None:
        detect.say("no Slurm here (no scontrol on PATH): the job is for this machine")
        profile = load_profile("local", base=Path.cwd(), own=None)
        return _Site(word="local", profile=profile, slurm=slurm)
    detected = detect.detect(Wish(), slurm)
    name = str(detected.data["name"])
    if name in own_names(own):
        _say_used(name)
        profile = load_profile(name, base=Path.cwd(), own=own)
        return _Site(word=name, profile=profile, slurm=slurm)
    if not quiet:
        detect.show(detected)
    return _Site(word=name, profile=found.profile_of(detected), slurm=slurm, detected=detected)


def _say_used(name: str) -> None:
    detect.say(f"site {name}: {own_sites()}/{name}.yaml is there already, and is used")


def _answers(given: _Given, where: _Site, directory: Path, ask: Asker) -> Answers:
    """Return what the command line says, and the answers to what it does not.

    Raises:
        SpecError: The site does not have it.
    """
    profile = where.profile
    _check_place(given, where)
    known = Answers(name="x", site=where.word, partition=given.partition)
    most = first_job.most_nodes(profile, first_job.partition_of(known, profile))
    if most is not None and given.nodes is not None and given.nodes > most:
        raise SpecError(f"--nodes: {given.nodes} are more than {profile.name} gives a job ({most})")
    return Answers(
        name=given.name or first_job.run_name(directory.absolute().name),
        site=where.word,
        script=questions.script(ask, given.script, directory),
        nodes=questions.nodes(ask, given.nodes, most),
        account=given.account or _account(ask, given, where),
        partition=given.partition,
        text=f"{Path(orchestrator.__file__).parent}/**/*.py",
        workers=_WORKERS if profile.scheduler == "local" else None,
    )


def _account(ask: Asker, given: _Given, where: _Site) -> str | None:
    """Return the account to name; None where Slurm knows by itself."""
    profile = where.profile
    if profile.scheduler == "local":
        return None
    choice, default = found.accounts_for(given.partition or profile.default_partition, where.slurm)
    if len(choice) > 1:
        return questions.account(ask, choice)
    # The only one that this partition takes may not be what Slurm would take.
    needed = bool(choice) and (choice[0] != default or profile.account_required)
    return choice[0] if needed else None


def _check_place(given: _Given, where: _Site) -> None:
    """Refuse a partition that is none, and what a machine without Slurm does not have.

    Raises:
        SpecError: It is so.
    """
    profile, partition = where.profile, given.partition
    if profile.scheduler == "local" and (partition or given.account):
        option = "--partition" if partition else "--account"
        raise SpecError(f"{option}: the site {where.word} has no Slurm; leave it out")
    if partition is None or partition in profile.partitions:
        return
    names = [*profile.partitions, *_of_slurm(where.slurm)]
    if names and partition not in names:
        there = ", ".join(dict.fromkeys(names))
        raise SpecError(
            f"--partition: {profile.name} has no partition {partition}; there are {there}"
        )


def _of_slurm(slurm: Slurm) -> list[str]:
    """Return the partitions of this cluster: a profile need not have all of them."""
    if shutil.which("scontrol") is None:
        return []
    with suppress(QueryError):
        return [one.name for one in asking.partitions(slurm)]
    return []


def _write(path: Path, answers: Answers, where: _Site, *, force: bool) -> None:
    """Write the profile, if there is none, and the job file.

    Raises:
        InputError: There is a file of another content already, or one cannot be written.
    """
    if where.detected is not None:
        _write_profile(where.word, where.detected)
    text = first_job.job_file(answers, where.profile)
    try:
        writing.put(path, text, force=force, check=load_job)
    except InputError:
        if not _is(path, text):  # else somebody wrote the same at the same time
            raise


def _write_profile(name: str, detected: Detected) -> None:
    try:
        path = detect.write(detected, None, force=False)
    except InputError:
        if name not in own_names(own_sites()):
            raise
        _say_used(name)  # somebody was faster
        return
    detect.say(f"site {name}: wrote {path}")


def _is(path: Path, text: str) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") == text
    return False
