"""The folder `OUT.part` of a preparation: who works in it, and which shards in it are whole."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import write_json
from orchestrator.errors import SpecError
from orchestrator.tokens.finding import signature
from orchestrator.tokens.index import ShardEntry, shard_entry
from orchestrator.tokens.pieces import Piece
from orchestrator.tokens.shard import read_header, why_unwritten

LOCK = "lock"
_AGAIN_S = 0.5


@contextmanager
def held(
    part: Path, *, patience_s: float = 0.0, stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Make the folder ``part`` and keep every other preparation out of it in here.

    A file system without locks is passed over: shards of two plans are told apart all the same.

    Args:
        part: The folder.
        patience_s: How many seconds to wait for another one to end.
        stop: Ends the waiting.

    Raises:
        SpecError: Another preparation is at work there, or has just finished.
        OSError: The folder cannot be made.
    """
    part.mkdir(parents=True, exist_ok=True)
    path, until = part / LOCK, time.monotonic() + patience_s
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while not _locked(handle):
            if time.monotonic() > until or stop():
                raise SpecError(f"{part}: another preparation is at work here{_who(path)}")
            time.sleep(_AGAIN_S)
        if not _is_there(path, handle):
            raise SpecError(f"{part}: another preparation has just ended; give the same again")
        os.ftruncate(handle, 0)
        os.pwrite(
            handle, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0
        )
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # Lustre without -o flock, for one
    return True


def _is_there(path: Path, handle: int) -> bool:
    """Return whether the file is still the one that was opened: a finished folder is renamed."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _who(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f" (process {owner['pid']} on {owner['host']}); wait for it, or end it"
    except (OSError, ValueError, TypeError, KeyError):
        return "; wait for it, or end it"


@contextmanager
def writing(part: Path) -> Iterator[None]:
    """Turn errors of the file system in here into one that names ``part`` and says what to do.

    Raises:
        SpecError: Something could not be written.
    """
    try:
        yield
    except OSError as problem:
        raise SpecError(why_unwritten(Path(problem.filename or part), problem)) from None


def write_note(part: Path, piece: Piece, done: dict[str, Any], *, plan: str) -> None:
    """Write down that the shard of ``piece`` is whole, and of which plan it is."""
    sample = signature(part / piece.file).sample
    write_json(_note(part, piece), {**done, "plan": plan, "sample": sample})


def read_note(part: Path, piece: Piece, *, plan: str) -> tuple[ShardEntry, int] | None:
    """Return what a finished shard of that plan holds, and how many documents were left out.

    None if it is yet to be made, or if the shard is not the one that the note speaks of.
    """
    path = part / piece.file
    try:
        note = json.loads(_note(part, piece).read_text(encoding="utf-8"))
        if note.pop("plan") != plan or note.pop("sample") != signature(path).sample:
            return None
        skipped = int(note.pop("skipped"))
        entry, header = shard_entry(note), read_header(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SpecError):
        return None
    same = (entry.file, entry.tokens, entry.documents, entry.largest)
    found = (piece.file, header.tokens, header.documents, header.largest)
    return (entry, skipped) if same == found else None


def _note(part: Path, piece: Piece) -> Path:
    return (part / piece.file).with_suffix(".json")
