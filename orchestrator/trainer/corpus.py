"""What is trained on: one source, or several as one.

Legend: B samples, L tokens of a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from orchestrator.errors import SpecError
from orchestrator.tokens.finding import find_files
from orchestrator.tokens.index import NAME, check_shards, read_index
from orchestrator.trainer.row import Bools, Ids, TokenFile, TokenRow, starts_of

__all__ = ["Corpus", "Joined", "find_files", "join", "open_corpus", "open_shards"]


class Corpus(Protocol):
    """Samples of one length, numbered from 0."""

    @property
    def num_samples(self) -> int:
        """How many there are."""
        ...

    @property
    def seq_len(self) -> int:
        """Tokens of a sample, L."""
        ...

    @property
    def largest(self) -> int:
        """No token is larger."""
        ...

    @property
    def fingerprint(self) -> str:
        """Another one, if the samples are others."""
        ...

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that tell a changed corpus."""
        ...

    @property
    def tokenizers(self) -> frozenset[str]:
        """What made the tokens: `bytes`, or digests."""
        ...

    def windows(self, samples: Ids) -> Ids:
        """Return the samples with their targets, of shape (B, L + 1)."""
        ...

    def beginnings(self, samples: Ids) -> Bools:
        """Return, of shape (B, L + 1), whether a document begins with that token."""
        ...

    def where(self, sample: int) -> str:
        """Return which file a sample begins in."""
        ...


@dataclass(frozen=True, slots=True)
class Joined:
    """Several rows; samples are numbered through. No sample runs from one into the next.

    Attributes:
        rows: The sources.
        weights: Their shares of the samples; empty where each sample comes once.
    """

    rows: tuple[TokenRow, ...]
    weights: tuple[float, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many samples each source has."""
        return tuple(row.num_samples for row in self.rows)

    @property
    def num_samples(self) -> int:
        """How many there are."""
        return sum(self.sizes)

    @property
    def seq_len(self) -> int:
        """Tokens of a sample, L."""
        return self.rows[0].seq_len

    @property
    def largest(self) -> int:
        """No token is larger."""
        return max(row.largest for row in self.rows)

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that tell a changed corpus."""
        return tuple(one for row in self.rows for one in row.sources)

    @property
    def tokenizers(self) -> frozenset[str]:
        """What made the tokens: `bytes`, or digests."""
        return frozenset(row.tokenizer for row in self.rows)

    @property
    def fingerprint(self) -> str:
        """Another one, if samples or weights are others."""
        text = f"{[row.fingerprint for row in self.rows]} {list(self.weights)}"
        return f"{blake2b(text.encode(), digest_size=8).hexdigest()}:several"

    def windows(self, samples: Ids) -> Ids:
        """Return the samples with their targets, of shape (B, L + 1)."""
        return np.concatenate([row.windows(ids) for row, ids in self._found(samples)])

    def beginnings(self, samples: Ids) -> Bools:
        """Return, of shape (B, L + 1), whether a document begins with that token."""
        return np.concatenate([row.beginnings(ids) for row, ids in self._found(samples)])

    def where(self, sample: int) -> str:
        """Return which file a sample begins in."""
        (row, ids), *_ = self._found(np.array([sample]))
        return row.where(int(ids[0]))

    def _found(self, samples: Ids) -> list[tuple[TokenRow, Ids]]:
        bases = np.cumsum([0, *self.sizes])
        owners = np.searchsorted(bases, samples, side="right") - 1
        pairs = zip(owners, samples - bases[owners], strict=True)
        return [(self.rows[owner], np.array([index])) for owner, index in pairs]


def join(rows: Sequence[TokenRow], weights: Sequence[float | None]) -> Corpus:
    """Return the sources as one corpus; a single one stays what it is."""
    if len(rows) == 1:
        return rows[0]
    return Joined(tuple(rows), tuple(weight for weight in weights if weight is not None))


def open_corpus(
    patterns: tuple[str, ...], *, seq_len: int, key: str = "data.text_files"
) -> TokenRow:
    """Return the text that ``patterns`` (files, folders or globs) name, as bytes.

    ``key`` is where they stand in the job file.

    Raises:
        SpecError: They name no file, or the text is too short for one sample.
    """
    paths = find_files(patterns, key=key)
    try:
        files = tuple(TokenFile(path=path, tokens=path.stat().st_size) for path in paths)
    except OSError as problem:
        raise SpecError(f"{key}: cannot be read: {problem}") from None
    row = TokenRow(
        files=files,
        starts=starts_of(files),
        seq_len=seq_len,
        largest=255,
        content="",
        sources=tuple(paths),
    )
    _long_enough(row, f"{key}: {int(row.starts[-1]):,} bytes in {len(files)} files")
    return replace(row, content=row.sampled())


def open_shards(folder: Path, *, seq_len: int, check: bool = True) -> TokenRow:
    """Return the tokens of a folder that `fsdpq prepare` made.

    Args:
        folder: The folder.
        seq_len: Tokens of a sample.
        check: Look at each shard's header and length now, not when it is first needed.

    Raises:
        SpecError: It is no such folder, a shard is not what it should be, or there is too little.
    """
    index = read_index(folder)
    if check:
        check_shards(folder, index)
    files = tuple(
        TokenFile(
            path=folder / entry.file,
            tokens=entry.tokens,
            documents=entry.documents,
            width=index.width,
        )
        for entry in index.shards
    )
    row = TokenRow(
        files=files,
        starts=starts_of(files),
        seq_len=seq_len,
        largest=max((entry.largest for entry in index.shards), default=0),
        content=index.id,
        sources=(folder / NAME, *(file.path for file in files)),
        tokenizer=index.tokenizer,
    )
    _long_enough(row, f"{folder}: {int(row.starts[-1]):,} tokens")
    # The index says what was written; what lies there now is sampled, as with texts.
    return replace(row, content=f"{index.id}:{row.sampled()}")


def _long_enough(row: TokenRow, what: str) -> None:
    if row.num_samples < 1:
        raise SpecError(f"{what} are too few for one sample of {row.seq_len} tokens and its target")
