"""`index.json` of a folder of token shards: written last, so a folder that has it is whole.

{"format": "fsdpq-tokens", "version": 1, "id": "5f2c...", "width": 2, "vocab_size": 49152,
 "tokenizer": "bytes or the digest of tokenizer.json", "skipped": 0, "request": {...},
 "inputs": [{"path": "/data/a.jsonl", "size": 1048576, "sample": "9b1d..."}],
 "shards": [{"file": "tokens-00000.bin", "tokens": 250000, "documents": 321,
             "largest": 49151, "digest": "c41a..."}]}
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.tokens.shard import digest_of, read_header

NAME = "index.json"
_FORMAT = "fsdpq-tokens"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard, in the order of the tokens."""

    file: str
    tokens: int
    documents: int
    largest: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that went in: what tells it from a changed one (see `finding.signature`)."""

    path: str
    size: int
    sample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a folder of shards holds.

    Attributes:
        width: Bytes a token.
        vocab_size: Of the tokenizer; all tokens are below.
        tokenizer: `bytes`, or a digest of the tokenizer.
        skipped: Documents that could not be read, and were left out.
        request: What was asked for when it was made.
    """

    width: int
    vocab_size: int
    tokenizer: str
    shards: tuple[ShardEntry, ...]
    inputs: tuple[Input, ...] = ()
    skipped: int = 0
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Stands for all tokens and documents."""
        text = " ".join(shard.digest for shard in self.shards)
        return blake2b(f"{self.width} {text}".encode(), digest_size=8).hexdigest()

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return sum(shard.documents for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Return what `index.json` holds."""
        return {"format": _FORMAT, "version": _VERSION, "id": self.id, **asdict(self)}


def read_index(folder: Path) -> Index:
    """Return what the folder of shards holds.

    Raises:
        SpecError: It is none, or was not finished.
    """
    path = folder / NAME
    try:
        return _index(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise SpecError(_why_none(folder)) from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as problem:
        raise SpecError(f"{path}: is no index of token shards: {problem!r}") from None


def _index(data: Mapping[str, Any]) -> Index:
    if data["format"] != _FORMAT or data["version"] != _VERSION:
        raise ValueError(f"{data['format']}, version {data['version']}")
    return Index(
        width=data["width"],
        vocab_size=data["vocab_size"],
        tokenizer=data["tokenizer"],
        skipped=data["skipped"],
        request=data.get("request", {}),
        inputs=tuple(Input(**entry) for entry in data["inputs"]),
        shards=tuple(shard_entry(entry) for entry in data["shards"]),
    )


def shard_entry(data: Mapping[str, Any]) -> ShardEntry:
    """Return what a line of JSON says of a shard.

    Raises:
        TypeError: A key is missing, unknown or of another type.
        ValueError: A number is below 0, or the file is in another folder.
    """
    entry = ShardEntry(**data)
    for key, kind in ShardEntry.__annotations__.items():
        if type(getattr(entry, key)) is not kind:
            raise TypeError(f"{key}: {getattr(entry, key)!r} is no {kind.__name__}")
    if min(entry.tokens, entry.documents, entry.largest) < 0 or Path(entry.file).name != entry.file:
        raise ValueError(f"{data}")
    return entry


def _why_none(folder: Path) -> str:
    if folder.with_name(f"{folder.name}.part").is_dir():
        return (
            f"{folder}: is not finished; give the same `fsdpq prepare` again, it goes on where it"
            " stopped"
        )
    return f"{folder}: holds no token shards (no {NAME}); `fsdpq prepare` makes them"


def check_shards(folder: Path, index: Index, *, whole: bool = False) -> None:
    """Compare each shard's header and length with the index, and with ``whole`` every byte.

    Raises:
        SpecError: A shard is missing, cut off or not the one that the index speaks of.
    """
    for entry in index.shards:
        path = folder / entry.file
        header = read_header(path)
        found = (header.width, header.tokens, header.documents, header.largest)
        if found != (index.width, entry.tokens, entry.documents, entry.largest):
            raise SpecError(f"{path}: is not the shard that {folder / NAME} speaks of")
        if whole and digest_of(path) != entry.digest:
            raise SpecError(f"{path}: its bytes have changed since it was made; copy it again")
