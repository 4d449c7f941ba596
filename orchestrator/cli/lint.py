"""`fsdpq sites lint`."""

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import click

from orchestrator.cli.main import echo_json, json_option, runs_option
from orchestrator.lint import LEVELS, Finding, in_order, version_of
from orchestrator.profile import shipped
from orchestrator.submitting import linting

_COLOURS = {"error": "red", "warn": "yellow", "info": "blue"}
_NAMES = {"error": "error", "warn": "warning", "info": "remark"}


def _version(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        found = version_of(text)
    except ValueError:
        found = ()
    if len(found) < 2 or found[0] != 2:
        raise click.BadParameter(f"{text!r} is no version of NCCL; write it as 2.21 or 2.21.5")
    return found


@click.command("lint")
@click.argument("names", nargs=-1, metavar="[FILE|NAME]...")
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    help="A job file: check it on these profiles, or on its own site if none is given.",
)
@click.option(
    "--nccl-version",
    "version",
    metavar="V",
    callback=_version,
    help="The NCCL that will run, such as 2.21.5; any of today, if left out.",
)
@click.option(
    "--all", "remarks", is_flag=True, help="Without names: show remarks on shipped profiles too."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@runs_option
@json_option
def lint_command(
    names: tuple[str, ...],
    job: Path | None,
    version: tuple[int, ...] | None,
    remarks: bool,
    strict: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """Find mistakes in site profiles and job files: each with why, and what to do.

    FILE is a profile or a job file, NAME a profile; all profiles if none is given, and then
    remarks on shipped ones are only counted. Nothing is changed. Exit code 1 if there are errors,
    else 0.
    """
    files, found = _look(names, job=job, version=version, runs=runs)
    if as_json:
        echo_json(_json(files, found))
    else:
        quiet = set() if names or job or remarks else set(shipped())
        for text in _texts(files, found, quiet=quiet):
            click.echo(text)
    bad = ("error", "warn") if strict else ("error",)
    if any(one.level in bad for one in found):
        raise click.exceptions.Exit(1)


def _look(
    names: Sequence[str], *, job: Path | None, version: tuple[int, ...] | None, runs: Path
) -> tuple[list[str], tuple[Finding, ...]]:
    """Return the files that were looked at, and what there is to say of them."""
    around = replace(linting.surroundings(), version=version)
    if not names and job is not None:
        names, job = [str(job)], None
    if not names:  # most of all profiles are of other clusters
        around = replace(around, interfaces=None)
    files: list[str] = []
    found: list[Finding] = []
    for name in names or linting.everything():
        file, said = linting.findings(name, job=job, runs=runs, around=around)
        files.append(file)
        found += said
    files += [str(job)] if job is not None else []
    return list(dict.fromkeys(files)), in_order(found)


def _counts(found: Sequence[Finding]) -> dict[str, int]:
    return {level: sum(one.level == level for one in found) for level in LEVELS}


def _json(files: Sequence[str], found: Sequence[Finding]) -> dict[str, object]:
    return {
        "files": list(files),
        "counts": _counts(found),
        "findings": [one.to_json() for one in found],
    }


def _texts(
    files: Sequence[str], found: Sequence[Finding], *, quiet: Collection[str]
) -> Iterator[str]:
    """Yield what to print: files with findings, one paragraph each, and a line about all.

    Args:
        files: Those that were looked at.
        found: What there is to say of them.
        quiet: Those whose remarks are counted only.
    """
    shown = [one for one in found if one.level != "info" or one.file not in quiet]
    for file, group in groupby(shown, key=lambda one: one.file):
        yield click.style(file, bold=True)
        for one in group:
            yield f"{_paragraph(one)}\n"
    clean = [file for file in files if not any(one.file == file for one in found)]
    if clean:
        yield _wrapped(f"nothing to say of {', '.join(clean)}", indent="")
    counts = _counts(found)
    told = [f"{count} {_NAMES[level]}{'s' * (count != 1)}" for level, count in counts.items()]
    yield f"{len(files)} file{'s' * (len(files) != 1)}: {', '.join(told)}"
    if hidden := len(found) - len(shown):
        yield f"{hidden} of them on shipped profiles; --all shows them, or a profile's name its own"


def _paragraph(one: Finding) -> str:
    head = f"{click.style(one.level, fg=_COLOURS[one.level])} {one.given} [{one.rule}]"
    return "\n".join(
        [
            f"  {head.replace('  ', ' ')}",
            *(_wrapped(line) for line in f"{one.reason}.".splitlines()),
            _wrapped(f"To do: {one.do}{'' if one.do.endswith(('.', '?')) else '.'}"),
            _wrapped(f"Source: {one.source}."),
        ]
    )


def _wrapped(text: str, *, indent: str = "    ") -> str:
    return textwrap.fill(
        text,
        width=98,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
