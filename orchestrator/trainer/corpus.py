"""Text files as one long row of bytes, cut into samples. Files are mapped, not read.

Legend: B sequences, L tokens of a sequence.
"""

import hashlib
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.errors import SpecError

Bytes = npt.NDArray[np.uint8]

VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class Corpus:
    """The bytes of all files, in the order of their paths.

    Attributes:
        files: Each file's bytes.
        starts: Where each file begins in the row, and at the end the length of the row.
        seq_len: Tokens of a sample, L.
    """

    files: tuple[Bytes, ...]
    starts: npt.NDArray[np.int64]
    seq_len: int

    @property
    def num_samples(self) -> int:
        """How many samples there are; the last byte of each is only a target."""
        return (int(self.starts[-1]) - 1) // self.seq_len

    @property
    def fingerprint(self) -> str:
        """Stands for the lengths of the files and of a sample: a changed corpus is told by it."""
        text = f"{self.seq_len} {self.starts.tolist()}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def windows(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the samples with their targets, of shape (B, L + 1): token t predicts t + 1."""
        return np.stack([self._window(int(sample)) for sample in samples]).astype(np.int64)

    def _window(self, sample: int) -> Bytes:
        begin = sample * self.seq_len
        end = begin + self.seq_len + 1
        first = int(np.searchsorted(self.starts, begin, side="right")) - 1
        parts = []
        while begin < end:
            offset = begin - int(self.starts[first])
            part = self.files[first][offset : offset + end - begin]
            parts.append(part)
            begin += len(part)
            first += 1
        return np.concatenate(parts)


def open_corpus(patterns: tuple[str, ...], *, seq_len: int) -> Corpus:
    """Return the text that ``patterns`` (files, folders or globs) name.

    Raises:
        SpecError: They name no file, or the text is too short for one sample.
    """
    paths = find_files(patterns)
    try:
        files = tuple(np.memmap(path, np.uint8, mode="r") for path in paths)
    except OSError as problem:
        raise SpecError(f"data.text_files: cannot be read: {problem}") from None
    starts = np.cumsum([0, *(len(file) for file in files)], dtype=np.int64)
    if starts[-1] <= seq_len:
        raise SpecError(
            f"data.text_files: {starts[-1]} bytes in {len(files)} files are too few for one sample"
            f" of {seq_len} tokens and its target"
        )
    return Corpus(files, starts, seq_len)


def find_files(patterns: tuple[str, ...]) -> list[Path]:
    """Return the files that ``patterns`` name, sorted; hidden and empty ones left out.

    Raises:
        SpecError: A pattern names nothing.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [file for match in _matches(pattern) for file in _files(match)]
        if not matches:
            raise SpecError(f"data.text_files: nothing matches {pattern}")
        found.update(matches)
    return sorted(path for path in found if path.stat().st_size)


def _matches(pattern: str) -> list[Path]:
    # glob() takes absolute patterns, Path.glob() refuses them.
    return [Path(match) for match in glob(pattern, recursive=True)]  # noqa: PTH207


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    inner = (file for file in path.rglob("*") if file.is_file())
    return [
        file
        for file in inner
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
