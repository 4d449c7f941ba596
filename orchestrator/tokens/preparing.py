"""Sources to a folder of token shards, in parallel. A killed preparation goes on where it stopped.

Everything is written into `OUT.part`, which is locked: `plan.json`, then for each piece its shard
and, once that is whole, `tokens-N.json` with what it holds and of which plan it is. When all are
there, `index.json` is written and the folder renamed to `OUT`. Pieces, and so shards, are the same
for any number of workers.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import sync_directory, write_json
from orchestrator.errors import SpecError
from orchestrator.tokens.documents import STILL
from orchestrator.tokens.encoding import BYTES, tokenizer_digest
from orchestrator.tokens.finding import (
    Kind,
    as_now,
    changed,
    dataset_files,
    find_files,
    signature,
)
from orchestrator.tokens.index import NAME, Index, Input, ShardEntry, read_index
from orchestrator.tokens.pieces import Piece, cut_files, cut_rows
from orchestrator.tokens.pool import answers
from orchestrator.tokens.shard import width_for
from orchestrator.tokens.unfinished import LOCK, held, read_note, write_note, writing

_PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be prepared.

    Attributes:
        kind: Of all that `paths` names.
        paths: Files, folders and patterns; of a dataset its one folder.
        field: The key or column that holds the text, or tokens.
        tokenizer: A folder, a tokenizer.json, or `bytes`.
        skip_bad: Leave out what cannot be read, and count it.
    """

    kind: Kind
    paths: tuple[str, ...]
    field: str = "text"
    tokenizer: str = BYTES
    skip_bad: bool = False


@dataclass(slots=True)
class Progress:
    """How far a preparation is.

    Attributes:
        unit: What `size` and `done` count.
        size: All there is.
        done: What was read, this time or before.
        before: What an earlier preparation had read.
        tokens: That came of it.
    """

    unit: str
    size: int
    done: int = 0
    before: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)


Tell = Callable[[Progress], None]


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
    if out.is_symlink() and not out.exists():
        raise SpecError(f"{out}: is a link to what is not there; remove it, or name another folder")
    if out.exists() and not out.is_dir():
        raise SpecError(f"{out}: is a file; name the folder to make")
    inputs = inputs_of(request, key=key)
    if out.exists():
        return _there(out, request, inputs)
    part = part_of(out)
    with writing(part), held(part, patience_s=patience_s, stop=stop):
        if out.exists():  # while another one was waited for
            return _there(out, request, inputs)
        if anew:
            _empty(part)
        plan = _Plan.of(request, inputs, _describe(request, python, stop))
        plan.begin(part, own=own)
        made = _make_all(plan, part, workers=workers, python=python, tell=tell, stop=stop)
        if problem := changed(inputs, as_now(inputs)):
            raise SpecError(f"{problem}; {STILL}")
        return _publish(plan.index(made), part, out)


def part_of(out: Path) -> Path:
    """Return where ``out`` is made."""
    return out.with_name(f"{out.name}.part")


def _empty(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def inputs_of(request: Request, *, key: str = "input") -> list[Input]:
    """Return the files that a request reads, as they are now.

    Raises:
        SpecError: There are none, or they cannot be read.
    """
    try:
        if request.kind == "dataset":
            files = dataset_files(_one(request.paths, key), key=key)
        else:
            files = find_files(request.paths, key=key)
        return [signature(path) for path in files]
    except OSError as problem:
        raise SpecError(f"{key}: cannot be read: {problem}") from None


def _one(paths: Sequence[str], key: str) -> Path:
    if len(paths) != 1:
        raise SpecError(f"{key}: one dataset at a time; {len(paths)} were given")
    return Path(paths[0])


def _there(out: Path, request: Request, inputs: Sequence[Input]) -> Index:
    index = read_index(out)
    if problem := changed(index.inputs, inputs):
        raise SpecError(
            f"{out}: was made from other files ({problem}); choose another folder, or remove it"
        )
    tokenizer = request.tokenizer
    name = tokenizer if tokenizer == BYTES else tokenizer_digest(Path(tokenizer))
    if asked := _unlike(index.request, _told(request, name)):
        raise SpecError(
            f"{out}: was made with another {asked}; choose another folder, or remove it"
        )
    _tidy(out)  # whoever made it may have been killed before
    return index


def _told(request: Request, tokenizer: str) -> dict[str, Any]:
    """Return what makes two requests for the same files differ."""
    return {
        "kind": request.kind,
        "field": request.field,
        "tokenizer": tokenizer,  # by what it holds: its folder may be copied
        "skip_bad": request.skip_bad,
    }


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return ", ".join(key for key in now if before.get(key) != now[key])


def _describe(request: Request, python: str, stop: Callable[[], bool]) -> dict[str, Any]:
    """Ask a worker for the tokenizer's size, and a dataset's."""
    dataset = request.paths[0] if request.kind == "dataset" else None
    order = {"do": "describe", "tokenizer": request.tokenizer, "dataset": dataset}
    for _, answer in answers([order], workers=1, python=python, stop=stop):
        facts: dict[str, Any] = answer["done"]
        return facts
    raise StoppedError("stopped before anything was done")


@dataclass(frozen=True, slots=True)
class _Plan:
    request: Request
    inputs: list[Input]
    tokenizer: str
    vocab_size: int
    pieces: list[Piece]

    @classmethod
    def of(cls, request: Request, inputs: list[Input], facts: dict[str, Any]) -> "_Plan":
        if request.kind == "dataset":
            pieces = cut_rows(request.paths[0], facts["rows"])
        else:
            pieces = _cut(request.kind, inputs)
        return cls(request, inputs, facts["name"], facts["vocab_size"], pieces)

    @property
    def width(self) -> int:
        return width_for(self.vocab_size)

    def to_json(self) -> dict[str, Any]:
        return {
            "request": _told(self.request, self.tokenizer),
            "vocab_size": self.vocab_size,
            "inputs": [asdict(one) for one in self.inputs],
            "pieces": [piece.to_json() for piece in self.pieces],
        }

    @property
    def digest(self) -> str:
        """Stands for the plan in the notes of its shards."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def index(self, made: "Sequence[tuple[ShardEntry, int]]") -> Index:
        """Return the index of what was made: the shards in order, and what each left out."""
        return Index(
            width=self.width,
            vocab_size=self.vocab_size,
            tokenizer=self.tokenizer,
            shards=tuple(entry for entry, _ in made if entry.documents),
            inputs=tuple(self.inputs),
            skipped=sum(skipped for _, skipped in made),
            request=_told(self.request, self.tokenizer),
        )

    def begin(self, part: Path, *, own: bool = False) -> None:
        """Write the plan into the folder, or see that it is one of the same plan."""
        path, data = part / _PLAN, self.to_json()
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            before = None
        except (OSError, ValueError, RecursionError) as problem:
            if not own:
                raise SpecError(f"{path}: cannot be used: {problem}; give --anew") from None
            before = None
        if before == data:
            return
        if own:
            _empty(part)
        elif before is not None and any(part.glob("tokens-*.json")):  # something would be lost
            raise SpecError(
                f"{part}: holds an unfinished preparation {_difference(before, data)}; choose"
                " another folder, or give --anew to throw it away"
            )
        write_json(path, data)

    def order(self, piece: Piece, folder: Path) -> dict[str, Any]:
        return {
            "do": "piece",
            "kind": self.request.kind,
            "key": self.request.field,
            "tokenizer": self.request.tokenizer,
            "skip_bad": self.request.skip_bad,
            "width": self.width,
            "folder": str(folder),
            "piece": piece.to_json(),
        }


def _cut(kind: Kind, inputs: Iterable[Input]) -> list[Piece]:
    """Return the pieces. A text is one document, and gzip can only be read from its beginning."""
    sizes = [(one.path, one.size) for one in inputs]
    plain = [one for one in sizes if not one[0].endswith(".gz")]
    if kind == "jsonl" and len(plain) == len(sizes):
        return cut_files(sizes, divisible=True)
    return cut_files(sizes, divisible=False)


def _difference(before: Any, now: dict[str, Any]) -> str:
    try:
        inputs = changed(*([Input(**one) for one in data["inputs"]] for data in (before, now)))
        asked = _unlike(before["request"], now["request"])
    except (TypeError, KeyError, AttributeError):
        return "of another version"
    if inputs:
        return f"of other files ({inputs})"
    return f"with another {asked or 'cut'}"


def _make_all(
    plan: _Plan,
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
    progress = _Tally(plan, found, tell)
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


class _Tally:
    """Adds up what the workers tell."""

    def __init__(
        self, plan: _Plan, found: dict[int, tuple[ShardEntry, int] | None], tell: Tell
    ) -> None:
        unit = "rows" if plan.request.kind == "dataset" else "bytes"
        sizes = {piece.number: piece.size for piece in plan.pieces}
        self._at = {number: sizes[number] for number, made in found.items() if made}
        self._tokens = {number: made[0].tokens for number, made in found.items() if made}
        self._tell = tell
        self._progress = Progress(unit, sum(sizes.values()), before=sum(self._at.values()))
        self._say()

    def add(self, piece: Piece, answer: dict[str, Any]) -> None:
        done = answer.get("done")
        self._at[piece.number] = piece.size if done else answer["at"]
        self._tokens[piece.number] = (done or answer)["tokens"]
        self._say()

    def _say(self) -> None:
        self._progress.done = sum(self._at.values())
        self._progress.tokens = sum(self._tokens.values())
        self._tell(self._progress)


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
        of_it = path.name in (LOCK, _PLAN) or path.match("tokens-*.json")
        if of_it if beside is None else path.name not in beside:
            with contextlib.suppress(OSError):  # shards may well lie where nobody may write
                path.unlink()
