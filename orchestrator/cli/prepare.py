"""`fsdpq prepare`."""

import os
import sys
import time
from pathlib import Path
from typing import get_args

import click

from orchestrator.cli.main import echo_json, interrupted, json_option, main
from orchestrator.errors import SpecError
from orchestrator.interrupts import as_exceptions
from orchestrator.tokens.encoding import BYTES
from orchestrator.tokens.finding import Kind, kind_of
from orchestrator.tokens.index import Index, check_shards, read_index
from orchestrator.tokens.preparing import part_of, prepare
from orchestrator.tokens.progress import Progress
from orchestrator.tokens.request import Request

_EVERY_S = {True: 0.5, False: 10.0}  # on a terminal, and in a log


def _full(text: str) -> str:
    return str(Path(text).expanduser().absolute())


def _kind(kind: str, inputs: tuple[str, ...]) -> Kind:
    if kind != "auto":
        return next(one for one in get_args(Kind) if one == kind)
    found = {kind_of(Path(text)) for text in inputs}
    if len(found) > 1:
        raise click.UsageError(
            f"INPUT: is partly {' and partly '.join(sorted(found))}; prepare one kind at a time"
        )
    return found.pop()


@main.command("prepare")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The folder of token shards to make."
)
@click.option(
    "--kind",
    type=click.Choice(["auto", *get_args(Kind)]),
    default="auto",
    show_default=True,
    help="What INPUT is; auto goes by its name.",
)
@click.option("--field", default="text", show_default=True, help="The key or column of the text.")
@click.option(
    "--tokenizer",
    default=BYTES,
    show_default=True,
    help="A local folder with tokenizer.json, such as a model's; or bytes.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes; one a processor by default."
)
@click.option("--python", default=sys.executable, help="The Python that has tokenizers, datasets.")
@click.option("--skip-bad", is_flag=True, help="Leave out what cannot be read, and count it.")
@click.option("--anew", is_flag=True, help="Throw away what an unfinished preparation left.")
@click.option("--check", is_flag=True, help="Make nothing: compare every byte of shards in INPUT.")
@json_option
def prepare_command(
    inputs: tuple[str, ...],
    output: Path | None,
    kind: str,
    field: str,
    tokenizer: str,
    workers: int | None,
    python: str,
    skip_bad: bool,
    anew: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Turn text into token shards, in parallel, ready for `train.data.shards`.

    INPUT is text files, JSON lines (also .gz) or a dataset folder of save_to_disk; a folder stands
    for the files in it, and patterns may be quoted. The same command again goes on where a killed
    one stopped.
    """
    if check:
        _check(inputs, as_json=as_json)
        return
    if output is None:
        raise click.UsageError("-o/--output: is required; it names the folder to make")
    request = Request(
        kind=_kind(kind, inputs),
        paths=tuple(_full(text) for text in inputs),
        field=field,
        tokenizer=tokenizer if tokenizer == BYTES else _full(tokenizer),
        skip_bad=skip_bad,
    )
    began, out = time.monotonic(), output.absolute()
    workers = workers or len(os.sched_getaffinity(0))
    try:
        with as_exceptions():
            index = prepare(request, out, workers=workers, python=python, tell=_Teller(), anew=anew)
    except KeyboardInterrupt as interrupt:
        left = f"what is finished stays in {part_of(out)}; the same command goes on from there"
        raise interrupted(interrupt, left) from None
    _report(output, index, time.monotonic() - began, as_json=as_json)


def _report(output: Path, index: Index, seconds: float, *, as_json: bool) -> None:
    if as_json:
        echo_json({**_facts(output, index), "seconds": round(seconds, 3)})
        return
    skipped = f", {index.skipped:,} documents left out" if index.skipped else ""
    click.echo(
        f"{output}: {index.tokens:,} tokens of {index.documents:,} documents in"
        f" {len(index.shards)} shards{skipped}, {seconds:.1f} s"
    )


def _facts(path: Path, index: Index) -> dict[str, object]:
    return {
        "path": str(path),
        "id": index.id,
        "tokens": index.tokens,
        "documents": index.documents,
        "shards": len(index.shards),
        "vocab_size": index.vocab_size,
        "skipped": index.skipped,
    }


def _check(folders: tuple[str, ...], *, as_json: bool) -> None:
    facts = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise SpecError(f"{folder}: is no folder of token shards")
        index = read_index(folder)
        check_shards(folder, index, whole=True)
        facts.append(_facts(folder, index))
        if not as_json:
            click.echo(f"{folder}: whole, {index.tokens:,} tokens in {len(index.shards)} shards")
    if as_json:
        echo_json(facts)


class _Teller:
    """Writes how far it is on standard error: one line that changes, or one now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = time.monotonic() + (0 if self._live else _EVERY_S[False])

    def __call__(self, progress: Progress) -> None:
        now, over = time.monotonic(), progress.done >= progress.size
        if now < self._next and not (over and self._live):
            return
        self._next = now + _EVERY_S[self._live]
        text = describe(progress, now)
        click.echo(f"\r{text:<78}" if self._live else text, err=True, nl=over or not self._live)


def describe(progress: Progress, now: float) -> str:
    """Return how far it is, how fast, and how long it will take, in a line."""
    share = progress.done / max(progress.size, 1)
    rate = (progress.done - progress.before) / max(now - progress.began, 1e-3)
    seconds = (progress.size - progress.done) / max(rate, 1e-9)
    left = f", {seconds:,.0f} s left" if share > 0.01 else ""
    if progress.unit == "bytes":
        speed = f"{rate / 1e6:,.1f} MB/s"
    else:
        speed = f"{rate:,.0f} {progress.unit}/s"
    return f"{share:4.0%}, {progress.tokens:,} tokens, {speed}{left}"
