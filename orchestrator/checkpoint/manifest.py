"""The manifest: which files a checkpoint has, how long they are and what their hashes are.

DCP cannot tell a flipped bit from a weight (it checks no sums), and a directory with a `.metadata`
file may still lack shards. The manifest is written last, so its presence says that the save came
to its end, and its contents say whether the files are still what was written.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator import __version__
from orchestrator.checkpoint.durable import write_json
from orchestrator.checkpoint.hashing import HASH_THREADS
from orchestrator.checkpoint.names import MANIFEST, QUARANTINE_REASON
from orchestrator.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a checkpoint: its length in bytes and its SHA-256 as hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint consists of. ``at`` is in seconds since 1970."""

    step: int
    world_size: int
    files: Mapping[str, FileEntry]
    at: float
    made_by: str = f"fsdpq {__version__}"


def list_files(directory: Path) -> list[str]:
    """Return the files below ``directory``, relative, with `/`, sorted; the manifest left out."""
    names = []
    for folder, _, files in os.walk(directory, onerror=_raise):
        names += [(Path(folder) / file).relative_to(directory).as_posix() for file in files]
    return sorted(name for name in names if name not in (MANIFEST, QUARANTINE_REASON))


def describe_files(directory: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Return length and hash of each file, after making it durable.

    Each rank describes the files that it has just written: they are still in its page cache, and
    fsync only helps on the host that holds the dirty pages.

    Raises:
        OSError: A file cannot be read, or could not be written to disk.
    """
    ordered = sorted(names)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        entries = pool.map(lambda name: _describe(directory / name), ordered)
        return dict(zip(ordered, entries, strict=True))


def _describe(path: Path) -> FileEntry:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(file.tell(), digest)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write ``manifest`` into ``directory``, durably and in one piece."""
    write_json(directory / MANIFEST, asdict(manifest))


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest in ``directory``.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: There is one, and it is damaged.
        OSError: It cannot be read.
    """
    path = directory / MANIFEST
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError("the manifest is damaged: it is not a file")
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return _parse(json.loads(text))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        OverflowError,  # of Infinity, which Python reads as a number
    ) as problem:
        raise CheckpointError(f"the manifest is damaged: {problem!r}") from None


def _parse(data: Any) -> Manifest:
    files = {name: FileEntry(int(e["size"]), str(e["sha256"])) for name, e in data["files"].items()}
    if not files:
        raise ValueError("it names no files")
    for name in files:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts:
            raise ValueError(f"{name!r} lies outside the checkpoint")
        if "\0" in name or not os.fsencode(name):  # what cannot be encoded is a ValueError, too
            raise ValueError(f"{name!r} is no name of a file")
    return Manifest(
        step=int(data["step"]),
        world_size=int(data["world_size"]),
        files=files,
        at=float(data["at"]),
        made_by=str(data.get("made_by", "unknown")),
    )


def _raise(problem: OSError) -> None:
    raise problem
