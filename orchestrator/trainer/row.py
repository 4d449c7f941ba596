"""Files of tokens as one long row, cut into samples. Files are mapped, not read.

Legend: B samples, L tokens of a sample.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.errors import SpecError
from orchestrator.tokens.shard import HEADER_BYTES, read_header

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Tokens = npt.NDArray[np.unsignedinteger[Any]]

# Each mapped file holds a descriptor, and a process may have 1,024 of them on many machines.
_MAPPED = 256
_SAMPLED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A file of the row: text, whose bytes are tokens and which is one document, or a shard.

    Attributes:
        width: Bytes a token; 0 stands for a text.
        tokens: How many there are.
        documents: How many there are.
    """

    path: Path
    tokens: int
    documents: int = 1
    width: int = 0


@lru_cache(maxsize=_MAPPED)
def _mapped(file: TokenFile) -> tuple[Tokens, npt.NDArray[np.uint64]]:
    """Return the tokens of a file, and where its documents end."""
    try:
        if not file.width:
            text = np.memmap(file.path, np.uint8, mode="r", shape=(file.tokens,))
            return text, np.array([file.tokens], np.uint64)
        header = read_header(file.path)
        kind = np.dtype(f"<u{file.width}")
        tokens = np.memmap(file.path, kind, mode="r", offset=HEADER_BYTES, shape=(file.tokens,))
        ends = np.memmap(file.path, "<u8", mode="r", offset=header.ends_at, shape=(file.documents,))
    except (OSError, ValueError) as problem:
        raise SpecError(f"{file.path}: cannot be read: {problem}") from None
    return tokens, ends


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """The tokens of all files, in their order.

    Attributes:
        files: The files.
        starts: Where each file begins in the row, and at the end the length of the row.
        seq_len: Tokens of a sample, L.
        largest: No token is larger.
        content: Stands for what is in the files, as far as samples and indexes show it.
        sources: The files that tell a changed corpus.
        tokenizer: That made the tokens: `bytes`, or a digest.
    """

    files: tuple[TokenFile, ...]
    starts: Ids
    seq_len: int
    largest: int
    content: str
    sources: tuple[Path, ...] = ()
    tokenizer: str = "bytes"

    @property
    def num_samples(self) -> int:
        """How many samples there are; the last token of each is only a target."""
        return (int(self.starts[-1]) - 1) // self.seq_len

    @property
    def fingerprint(self) -> str:
        """Stands for lengths and contents: a changed corpus is told by it."""
        text = f"{self.seq_len} {self.starts.tolist()}"
        lengths = blake2b(text.encode(), digest_size=8).hexdigest()
        return f"{lengths}:{self.content}"

    @property
    def tokenizers(self) -> frozenset[str]:
        """What made the tokens, as with several rows."""
        return frozenset((self.tokenizer,))

    def windows(self, samples: Ids) -> Ids:
        """Return the samples with their targets, of shape (B, L + 1): token t predicts t + 1."""
        return np.stack([self._window(int(sample)) for sample in samples]).astype(np.int64)

    def _window(self, sample: int) -> Tokens:
        begin = sample * self.seq_len
        return self.span(begin, begin + self.seq_len + 1)

    def span(self, begin: int, end: int) -> Tokens:
        """Return the tokens of the row from ``begin`` up to ``end``."""
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        parts = []
        while begin < end:
            offset = begin - int(self.starts[first])
            part = _mapped(self.files[first])[0][offset : offset + end - begin]
            parts.append(part)
            begin += len(part)
            first += 1
        return np.concatenate(parts)

    def beginnings(self, samples: Ids) -> Bools:
        """Return, of shape (B, L + 1), whether a document begins with that token of the sample.

        The first one is taken for a beginning: what stands before it is in another sample.
        """
        found = np.zeros((len(samples), self.seq_len + 1), np.bool_)
        for row, sample in zip(found, samples, strict=True):
            begin = int(sample) * self.seq_len
            row[0] = True
            row[self._ends(begin, begin + self.seq_len) - begin] = True
        return found

    def _ends(self, begin: int, last: int) -> Ids:
        """Return where documents end after ``begin`` and not after ``last``: there others begin."""
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        found = []
        while first < len(self.files) and int(self.starts[first]) <= last:
            base = int(self.starts[first])
            ends = _mapped(self.files[first])[1]
            low = np.searchsorted(ends, max(begin - base, 0), side="right")
            high = np.searchsorted(ends, last - base, side="right")
            found.append(ends[low:high].astype(np.int64) + base)
            first += 1
        return np.concatenate(found)

    def where(self, sample: int) -> str:
        """Return which file a sample begins in, and at which token of it."""
        begin = sample * self.seq_len
        number = int(np.searchsorted(self.starts, begin, side="right")) - 1
        return f"{self.files[number].path}, after token {begin - int(self.starts[number]):,}"

    def sampled(self) -> str:
        """Return a digest of tokens here and there in the row; two rows rarely have the same."""
        digest = blake2b(digest_size=8)
        length = int(self.starts[-1])
        count = min(_SAMPLED, length)
        for number in range(count):
            begin = (length - 1) * number // max(count - 1, 1)
            digest.update(self.span(begin, min(begin + 512, length)).tobytes())
        _mapped.cache_clear()  # a file that is cut off later is to be told when it is mapped
        return digest.hexdigest()


def starts_of(files: tuple[TokenFile, ...]) -> Ids:
    """Return where each file begins in the row, and at the end the length of the row."""
    return np.cumsum([0, *(file.tokens for file in files)], dtype=np.int64)
