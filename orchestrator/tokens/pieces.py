"""Cuts sources into pieces of work: one shard each, the same for any number of workers. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# A shard is what one worker makes at a time, and what is done again after a kill.
_LEAST = 16 << 20
_MOST_SHARDS = 4096
_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one file: from the byte (of a dataset: the row) `begin` up to `end`.

    Of JSON lines those belong to it that begin in it.
    """

    path: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What goes into one shard."""

    number: int
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """How much it is, in bytes or rows."""
        return sum(span.end - span.begin for span in self.spans)

    @property
    def file(self) -> str:
        """The name of its shard."""
        return f"tokens-{self.number:05}.bin"

    def to_json(self) -> dict[str, Any]:
        """Return it as a worker is told of it."""
        return {"file": self.file, "spans": [asdict(span) for span in self.spans]}


def cut_files(sizes: Sequence[tuple[str, int]], *, divisible: bool) -> list[Piece]:
    """Return the pieces of files of so many bytes; whole files unless ``divisible``."""
    least = max(_LEAST, sum(size for _, size in sizes) // _MOST_SHARDS)
    return _number(_gather(sizes, least, divisible=divisible))


def cut_rows(path: str, rows: int) -> list[Piece]:
    """Return the pieces of a dataset of so many rows."""
    least = max(_ROWS, rows // _MOST_SHARDS)
    return _number(_gather([(path, rows)], least, divisible=True))


def _gather(
    sizes: Sequence[tuple[str, int]], least: int, *, divisible: bool
) -> Iterator[tuple[Span, ...]]:
    spans: list[Span] = []
    held = 0
    for path, size in sizes:
        begin = 0
        while begin < size:
            end = min(begin + least - held, size) if divisible else size
            spans.append(Span(path, begin, end))
            held += end - begin
            begin = end
            if held >= least:
                yield tuple(spans)
                spans, held = [], 0
    if spans:
        yield tuple(spans)


def _number(groups: Iterator[tuple[Span, ...]]) -> list[Piece]:
    return [Piece(number, spans) for number, spans in enumerate(groups)]
