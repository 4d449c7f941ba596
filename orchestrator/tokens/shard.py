"""A token shard: one file that says itself what is in it, to be mapped into memory.

All numbers are little-endian.

    offset  bytes      what
    0       8          FSDPQTOK
    8       4          version of the format: 1
    12      4          width of a token in bytes: 1, 2 or 4
    16      8          T, the number of tokens
    24      8          D, the number of documents
    32      8          the largest token
    40      24         zero
    64      T * width  the tokens, document after document; then zeros up to a multiple of 8 bytes
            8 * D      where each document ends: the position after its last token

No document is empty, and the last one ends with the last token.
"""

import contextlib
import errno
import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import SpecError

MAGIC = b"FSDPQTOK"
VERSION = 1
HEADER_BYTES = 64
_HEADER = struct.Struct("<8sIIQQQ24x")
_CODES = {1: "B", 2: "H", 4: "I"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a shard says of itself."""

    width: int
    tokens: int
    documents: int
    largest: int

    @property
    def ends_at(self) -> int:
        """Where the table of the documents' ends begins, in bytes."""
        return HEADER_BYTES + -(-self.tokens * self.width // 8) * 8

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return self.ends_at + 8 * self.documents

    def pack(self) -> bytes:
        """Return the first bytes of the file."""
        return _HEADER.pack(MAGIC, VERSION, self.width, self.tokens, self.documents, self.largest)


def width_for(vocab_size: int) -> int:
    """Return how many bytes a token of such a vocabulary takes.

    >>> width_for(256), width_for(49152), width_for(128256)
    (1, 2, 4)
    """
    return 1 if vocab_size <= 1 << 8 else 2 if vocab_size <= 1 << 16 else 4


def read_header(path: Path) -> Header:
    """Return the header of the shard ``path``, whose length must be as it says.

    Raises:
        SpecError: It is no shard, of a later version, or not as long as it should be.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER_BYTES)
            nbytes = os.fstat(file.fileno()).st_size
    except OSError as problem:
        raise SpecError(f"{path}: cannot be read: {problem.strerror}") from None
    if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
        raise SpecError(f"{path}: is no token shard; `fsdpq prepare` makes them")
    _, version, width, tokens, documents, largest = _HEADER.unpack(raw)
    if version != VERSION or width not in _CODES:
        raise SpecError(
            f"{path}: is a token shard of version {version} with {width} bytes a token, which this"
            " fsdpq does not read; make it again with `fsdpq prepare`"
        )
    header = Header(width=width, tokens=tokens, documents=documents, largest=largest)
    if nbytes != header.nbytes:
        raise SpecError(
            f"{path}: has {nbytes:,} bytes, but its header says {header.nbytes:,} ({tokens:,}"
            f" tokens, {documents:,} documents); it was cut off or changed. Copy it again, or make"
            " it again with `fsdpq prepare`"
        )
    return header


class ShardWriter:
    """Collects documents and writes them as one shard, which appears whole or not at all."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._tokens = array(_CODES[width])
        self._ends = array("Q")
        self._largest = 0

    def add(self, tokens: Iterable[int]) -> None:
        """Add a document; an empty one is left out.

        Raises:
            OverflowError: A token does not fit the width.
        """
        begin = len(self._tokens)
        self._tokens.extend(tokens)
        if len(self._tokens) > begin:
            self._ends.append(len(self._tokens))

    def add_bytes(self, content: bytes) -> None:
        """Add a document whose tokens are bytes."""
        if content:
            self._tokens.frombytes(content)
            self._ends.append(len(self._tokens))

    def write(self, path: Path) -> tuple[Header, str]:
        """Write the shard; return its header and the BLAKE2b digest of the file, in hex."""
        header = Header(
            width=self._width,
            tokens=len(self._tokens),
            documents=len(self._ends),
            largest=max(self._tokens, default=0),
        )
        if sys.byteorder == "big":
            self._tokens.byteswap()
            self._ends.byteswap()
        padding = bytes(header.ends_at - HEADER_BYTES - header.tokens * self._width)
        pieces = (header.pack(), self._tokens, padding, self._ends)
        return header, _write_whole(path, pieces)


def _write_whole(path: Path, pieces: "Iterable[bytes | array[int]]") -> str:
    digest = hashlib.blake2b(digest_size=16)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise SpecError(why_unwritten(path, problem)) from None
        raise
    return digest.hexdigest()


def why_unwritten(path: Path, problem: OSError) -> str:
    """Return what to say where ``path`` could not be written."""
    text = f"{path}: cannot be written: {problem.strerror or problem}"
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}; make room and give the same again, it goes on where it stopped"
    if problem.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR):
        return f"{text}; choose another folder"
    return text


def digest_of(path: Path) -> str:
    """Return the BLAKE2b digest of a file, as `ShardWriter.write` gives it."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
