"""The documents of a part of a source, one after the other. What cannot be read is named."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import SpecError

# A text, its bytes where tokens are bytes, or tokens that somebody else has made.
Document = str | bytes | list[int]


STILL = "it changed while it was read. Start again once nobody writes to it"


class BadDocumentError(SpecError):
    """One document cannot be used; those after it may be."""


def text_document(path: Path, *, as_bytes: bool, size: int | None = None) -> Document:
    """Return the text file ``path``, of ``size`` bytes if that is known, as one document.

    Raises:
        BadDocumentError: It is not UTF-8, which matters to tokenizers only.
        SpecError: It cannot be read, or has another length.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise SpecError(f"{path}: cannot be read: {problem.strerror}") from None
    if size not in (None, len(content)):
        raise SpecError(f"{path}: has {len(content):,} bytes and had {size:,}; {STILL}")
    if as_bytes:
        return content
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise BadDocumentError(
            f"{path}, line {line}: is not UTF-8 (byte {content[problem.start]:#04x} at offset"
            f" {problem.start:,}); convert the file, for example with iconv"
        ) from None


def json_lines(
    path: Path, begin: int, end: int, *, key: str
) -> Iterator[tuple[int, Document | BadDocumentError]]:
    """Yield the documents of the lines that begin in the bytes ``begin`` to ``end``.

    Each with how many bytes have been read by then. A bad line comes as its error, so that the
    reader can go on behind it. A compressed file is read whole.

    Raises:
        SpecError: The file cannot be read.
    """
    try:
        with _open(path) as file:
            yield from _lines(file, path, begin, end, key)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise SpecError(f"{path}: is cut off or no gzip file: {problem}; copy it again") from None
    except OSError as problem:
        raise SpecError(f"{path}: cannot be read: {problem.strerror or problem}") from None


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"), 1 << 20)
    return path.open("rb", buffering=1 << 20)


def _lines(
    file: IO[bytes], path: Path, begin: int, end: int, key: str
) -> Iterator[tuple[int, Document | BadDocumentError]]:
    packed = path.suffix == ".gz"
    if begin and not packed:  # the line that began before belongs to the piece before
        file.seek(begin - 1)
        file.readline()
    at = begin if packed else file.tell()
    number = 0
    while packed or at < end:
        line = file.readline()
        if not line:
            if not packed:
                raise SpecError(f"{path}: ends at byte {at:,} and had {end:,}; {STILL}")
            return
        number += 1
        if line.strip():
            where = _Where(path, at, number if packed or begin == 0 else None)
            read = _packed_read(file) if packed else at + len(line) - begin
            yield read, _document(line, key, where)
        at += len(line)


def _packed_read(file: Any) -> int:
    """Return how many bytes of the compressed file have been read."""
    read: int = file.raw.fileobj.tell()
    return read


class _Where:
    """Says which line it is; counts lines only if somebody asks."""

    def __init__(self, path: Path, offset: int, number: int | None) -> None:
        self._path, self._offset, self._number = path, offset, number

    def __str__(self) -> str:
        return f"{self._path}, line {self._number or self._count()}"

    def _count(self) -> int:
        lines, left = 1, self._offset
        with self._path.open("rb") as file:
            while left and (block := file.read(min(left, 1 << 20))):
                lines += block.count(b"\n")
                left -= len(block)
        return lines


def _document(line: bytes, key: str, where: _Where) -> Document | BadDocumentError:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as problem:
        return BadDocumentError(
            f"{where}: is not UTF-8 (byte {line[problem.start]:#04x}, the {problem.start + 1}. of"
            " the line)"
        )
    except (ValueError, RecursionError) as problem:
        if not line.endswith(b"\n"):
            return BadDocumentError(
                f"{where}: the last line is torn: {problem}. Is the file still being written, or"
                " was it copied in part?"
            )
        return BadDocumentError(f"{where}: is no JSON: {problem}")
    if not isinstance(row, dict):
        return BadDocumentError(f"{where}: must be a JSON object such as {{{key!r}: ...}}")
    return _usable(row[key], key, where) if key in row else _no_key(row, key, where)


def _no_key(row: dict[str, Any], key: str, where: _Where) -> BadDocumentError:
    known = ", ".join(repr(name) for name in list(row)[:8]) or "none"
    return BadDocumentError(f"{where}: has no key {key!r} (there are: {known}); name one as field")


def dataset_rows(dataset: Any, begin: int, end: int, *, path: str, key: str) -> Iterator[Any]:
    """Yield the documents of a dataset's rows ``begin`` to ``end``; a bad one as its error.

    Raises:
        SpecError: There is no such column.
    """
    if key not in dataset.column_names:
        known = ", ".join(dataset.column_names)
        raise SpecError(f"{path}: has no column {key!r} (there are: {known}); name one as field")
    column = dataset.select_columns([key])
    for first in range(begin, end, 1000):
        for offset, value in enumerate(column[first : min(first + 1000, end)][key]):
            yield _usable(value, key, f"{path}, row {first + offset}")


def _usable(value: Any, key: str, where: object) -> Document | BadDocumentError:
    if isinstance(value, str):
        return value if value.isascii() else _encodable(value, key, where)
    if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
        return value
    return BadDocumentError(
        f"{where}: {key!r} holds neither text nor tokens but {type(value).__name__}"
    )


def _encodable(value: str, key: str, where: object) -> Document | BadDocumentError:
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        return BadDocumentError(
            f"{where}: {key!r} holds half of a surrogate pair (\\u{ord(value[problem.start]):04x},"
            f" character {problem.start:,}), which is no text; write it anew as UTF-8"
        )
    return value
