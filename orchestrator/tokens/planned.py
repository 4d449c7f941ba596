"""A preparation as it is written down: which shard comes of which piece of the sources."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import write_json
from orchestrator.errors import SpecError
from orchestrator.tokens.finding import Kind, changed
from orchestrator.tokens.index import Index, Input, ShardEntry
from orchestrator.tokens.pieces import Piece, cut_files, cut_rows
from orchestrator.tokens.request import Request, told, unlike
from orchestrator.tokens.shard import width_for

PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of what was asked for.

    Attributes:
        tokenizer: What stands for it in the index: a digest of what it holds, or `bytes`.
        vocab_size: Of the tokenizer.
    """

    request: Request
    inputs: list[Input]
    tokenizer: str
    vocab_size: int
    pieces: list[Piece]

    @classmethod
    def of(cls, request: Request, inputs: list[Input], facts: dict[str, Any]) -> "Plan":
        """Return it by what a worker said of the tokenizer, and of a dataset."""
        if request.kind == "dataset":
            pieces = cut_rows(request.paths[0], facts["rows"])
        else:
            pieces = _cut(request.kind, inputs)
        return cls(request, inputs, facts["name"], facts["vocab_size"], pieces)

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return width_for(self.vocab_size)

    def to_json(self) -> dict[str, Any]:
        """Return what two plans must have in common to be the same."""
        return {
            "request": told(self.request, self.tokenizer),
            "vocab_size": self.vocab_size,
            "inputs": [asdict(one) for one in self.inputs],
            "pieces": [piece.to_json() for piece in self.pieces],
        }

    @property
    def unit(self) -> str:
        """What the sizes of its pieces count."""
        return "rows" if self.request.kind == "dataset" else "bytes"

    @property
    def digest(self) -> str:
        """Stands for the plan in the notes of its shards."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def index(self, made: Sequence[tuple[ShardEntry, int]]) -> Index:
        """Return the index of what was made: the shards in order, and what each left out."""
        return Index(
            width=self.width,
            vocab_size=self.vocab_size,
            tokenizer=self.tokenizer,
            shards=tuple(entry for entry, _ in made if entry.documents),
            inputs=tuple(self.inputs),
            skipped=sum(skipped for _, skipped in made),
            request=told(self.request, self.tokenizer),
        )

    def is_begun(self, part: Path) -> bool:
        """Return whether what lies in the folder is of this plan."""
        try:
            return bool(json.loads((part / PLAN).read_text(encoding="utf-8")) == self.to_json())
        except (OSError, ValueError, RecursionError):
            return False

    def begin(self, part: Path) -> None:
        """Write the plan into the folder, or see that it is one of the same plan.

        Raises:
            SpecError: Shards of another plan are there, or what it says cannot be used.
        """
        path, data = part / PLAN, self.to_json()
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            write_json(path, data)
            return
        except (OSError, ValueError, RecursionError) as problem:
            raise SpecError(f"{path}: cannot be used: {problem}; give --anew") from None
        if before == data:
            return
        if not any(part.glob("tokens-*.json")):  # nothing would be lost
            write_json(path, data)
        else:
            raise SpecError(
                f"{part}: holds an unfinished preparation {_difference(before, data)}; choose"
                " another folder, or give --anew to throw it away"
            )

    def order(self, piece: Piece, folder: Path) -> dict[str, Any]:
        """Return what a worker is told to do; see `worker`."""
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
        asked = unlike(before["request"], now["request"])
    except (TypeError, KeyError, AttributeError):
        return "of another version"
    if inputs:
        return f"of other files ({inputs})"
    return f"with another {asked or 'cut'}"
