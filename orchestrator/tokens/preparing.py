"""Sources to a folder of token shards, in parallel. A killed preparation goes on where it stopped.

Everything is written into `OUT.part`, which is locked: `plan.json`, then for each piece its shard
and, once that is whole, `tokens-N.json` with what it holds and of which plan it is. When all are
there, `index.json` is written and the folder renamed to `OUT`. Pieces, and so shards, are the same
for any number of workers.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import sync_directory, write_json
from orchestrator.errors import SpecError
from orchestrator.tokens.documents import STILL
from orchestrator.tokens.encoding import BYTES, tokenizer_digest
from orchestrator.tokens.finding import as_now, changed
from orchestrator.tokens.index import NAME, Index, Input, ShardEntry, read_index
from orchestrator.tokens.planned import PLAN, Plan
from orchestrator.tokens.pool import answers
from orchestrator.tokens.progress import Tally, Tell
from orchestrator.tokens.request import Request, inputs_of, told, unlike
from orchestrator.tokens.unfinished import LOCK, held, read_note, write_note, writing


class StoppedError(SpecError):
    """The preparation was asked to stop; what is finished stays."""


def prepare(
    request: Request,
    out: Path,
    *,
    workers: int,
    python: str,
    tell: Tell = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
    anew: bool = False,
    own: bool = False,
    key: str = "input",
    patience_s: float = 0.0,
) -> Index:
    """Return what ``out`` holds, once it holds all of ``request``.

    Args:
        request: What is to be prepared.
        out: The folder to make.
        workers: How many processes; the result does not depend on it.
        python: The interpreter that has tokenizers and datasets.
        tell: Is told how far it is.
        stop: Asked twice a second.
        anew: Throw away what an unfinished preparation has left.
        own: Nobody but the caller uses ``out``, so an unfinished preparation of something else
            is of no use to anybody and is thrown away, too.
        key: What the user calls the paths.
        patience_s: How many seconds to wait for another preparation of ``out`` to end.

    Raises:
        SpecError: A source cannot be used, ``out`` holds something else, or another is at work.
        StoppedError: ``stop`` said so.
    """
    _check_name(out)
    inputs = inputs_of(request, key=key)
    if out.exists():
        return _there(out, request, inputs)
    part = part_of(out)
    with writing(part), held(part, patience_s=patience_s, stop=stop):
        if out.exists():  # while another one was waited for
            return _there(out, request, inputs)
        plan = Plan.of(request, inputs, _describe(request, python, stop))
        if anew or (own and not plan.is_begun(part)):
            _empty(part)
        plan.begin(part)
        made = _make_all(plan, part, workers=workers, python=python, tell=tell, stop=stop)
        if problem := changed(inputs, as_now(inputs)):
            raise SpecError(f"{problem}; {STILL}")
        return _publish(plan.index(made), part, out)


def _check_name(out: Path) -> None:
    if out.is_symlink() and not out.exists():
        raise SpecError(f"{out}: is a link to what is not there; remove it, or name another folder")
    if out.exists() and not out.is_dir():
        raise SpecError(f"{out}: is a file; name the folder to make")


def part_of(out: Path) -> Path:
    """Return where ``out`` is made."""
    return out.with_name(f"{out.name}.part")


def _empty(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _there(out: Path, request: Request, inputs: Sequence[Input]) -> Index:
    if not (out / NAME).exists():
        raise SpecError(f"{out}: is there and holds no token shards; name another folder")
    index = read_index(out)
    if problem := changed(index.inputs, inputs):
        raise SpecError(
            f"{out}: was made from other files ({problem}); choose another folder, or remove it"
        )
    tokenizer = request.tokenizer
    name = tokenizer if tokenizer == BYTES else tokenizer_digest(Path(tokenizer))
    if asked := unlike(index.request, told(request, name)):
        raise SpecError(
            f"{out}: was made with another {asked}; choose another folder, or remove it"
        )
    _tidy(out)  # whoever made it may have been killed before
    return index


def _describe(request: Request, python: str, stop: Callable[[], bool]) -> dict[str, Any]:
    """Ask a worker for the tokenizer's size, and a dataset's."""
    dataset = request.paths[0] if request.kind == "dataset" else None
    order = {"do": "describe", "tokenizer": request.tokenizer, "dataset": dataset}
    for _, answer in answers([order], workers=1, python=python, stop=stop):
        facts: dict[str, Any] = answer["done"]
        return facts
    raise StoppedError("stopped before anything was done")


def _make_all(
    plan: Plan,
    part: Path,
    *,
    workers: int,
    python: str,
    tell: Tell,
    stop: Callable[[], bool],
) -> list[tuple[ShardEntry, int]]:
    """Make what is missing; return all shards in order, and how many documents each left out."""
    digest = plan.digest
    found = {piece.number: read_note(part, piece, plan=digest) for piece in plan.pieces}
    missing = [piece for piece in plan.pieces if found[piece.number] is None]
    progress = Tally(plan.pieces, found, tell, unit=plan.unit)
    orders = [plan.order(piece, part) for piece in missing]
    for number, answer in answers(orders, workers=workers, python=python, stop=stop):
        piece = missing[number]
        if "done" in answer:
            write_note(part, piece, answer["done"], plan=digest)
        progress.add(piece, answer)
    # Read again: what is published is what lies there now.
    made = [read_note(part, piece, plan=digest) for piece in plan.pieces]
    whole = [one for one in made if one is not None]
    if len(whole) < len(made):
        raise StoppedError(f"{part}: stopped; the same preparation goes on from here")
    return whole


def _publish(index: Index, part: Path, out: Path) -> Index:
    if not index.tokens:
        raise SpecError(f"{part}: there is not a single token in what was given")
    write_json(part / NAME, index.to_json())
    try:
        os.rename(part, out)  # noqa: PTH104 (Path.rename would be the same)
    except OSError as problem:
        raise SpecError(f"{out}: cannot be made from {part}: {problem.strerror}") from None
    sync_directory(out.parent)
    _tidy(out, beside={NAME, *(entry.file for entry in index.shards)})
    return index


def _tidy(out: Path, *, beside: set[str] | None = None) -> None:
    """Remove what only the preparation needed: all ``beside`` these names, or what surely is it."""
    for path in out.iterdir():
        of_it = path.name in (LOCK, PLAN) or path.match("tokens-*.json")
        if of_it if beside is None else path.name not in beside:
            with contextlib.suppress(OSError):  # shards may well lie where nobody may write
                path.unlink()
