"""Which files a source names, and what tells a changed file from the one that was there."""

import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from glob import glob, has_magic
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from orchestrator.errors import SpecError
from orchestrator.tokens.index import Input

Kind = Literal["text_files", "jsonl", "dataset"]

_BLOCK = 4096
_LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".json.gz")


def find_files(patterns: Iterable[str], *, key: str = "data.text_files") -> list[Path]:
    """Return the files that ``patterns`` name, sorted; hidden and empty ones left out.

    A file with several names (links, a loop of them) counts once, by its shortest name.

    Raises:
        SpecError: A pattern names nothing, or all that is named is empty.
    """
    found: set[Path] = set()
    for pattern in patterns:
        matches = [file for match in _matches(pattern) for file in _files(match)]
        if not matches:
            raise SpecError(f"{key}: {_why_nothing(pattern)}")
        found.update(matches)
    full = _once(path for path in found if path.stat().st_size)
    if not full:
        raise SpecError(f"{key}: {_names(sorted(found))} empty")
    return full


def _once(paths: Iterable[Path]) -> list[Path]:
    """Return, sorted, one name of each file."""
    names: dict[tuple[int, int], Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        status = path.stat()
        names.setdefault((status.st_dev, status.st_ino), path)
    return sorted(names.values())


def _why_nothing(pattern: str) -> str:
    for path in _matches(pattern):
        if path.is_dir():
            return f"{path} is a folder without files (hidden ones do not count)"
        if path.exists():
            return f"{path} is {_special(path.stat().st_mode)}, and must be a file"
    return f"nothing matches {pattern}"


def _special(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def find_folders(patterns: Iterable[str], *, key: str = "data.shards") -> list[Path]:
    """Return the folders that ``patterns`` name, those of one pattern sorted.

    Unfinished ones (`.part`) and files do not match a pattern; a name stands for itself.

    Raises:
        SpecError: A pattern names nothing.
    """
    found: list[Path] = []
    for pattern in patterns:
        if Path(pattern).exists() or not has_magic(pattern):
            found.append(Path(pattern))
            continue
        matches = [path for path in _matches(pattern) if path.is_dir() and path.suffix != ".part"]
        if not matches:
            raise SpecError(f"{key}: no folder matches {pattern}")
        found += sorted(matches)
    return found


def _names(paths: list[Path]) -> str:
    return f"{paths[0]} is" if len(paths) == 1 else f"all {len(paths)} files are"


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


def kind_of(path: Path) -> Kind:
    """Return what ``path`` looks like: a dataset's folder, JSON lines, or text."""
    if is_dataset(path):
        return "dataset"
    return "jsonl" if path.name.endswith(_LINES) else "text_files"


def is_dataset(path: Path) -> bool:
    """Return whether `save_to_disk` of Hugging Face's datasets made the folder ``path``."""
    return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))


def dataset_files(path: Path, *, key: str = "data.dataset") -> list[Path]:
    """Return the files of one split of a dataset that `save_to_disk` made.

    Raises:
        SpecError: It is none, or a folder of several splits.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = [path / entry["filename"] for entry in state["_data_files"]]
        files += [path / entry["filename"] for entry in state.get("_indices_data_files") or ()]
    except FileNotFoundError:
        raise SpecError(f"{key}: {_no_split(path)}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise SpecError(f"{key}: {path / 'state.json'}: cannot be used: {problem!r}") from None
    if missing := [file for file in files if not file.is_file()]:
        raise SpecError(f"{key}: {missing[0]} is missing; copy the dataset again")
    return [path / "state.json", *files]


def _no_split(path: Path) -> str:
    try:
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        return f"{path} holds several splits; give one of them: {path}/{{{','.join(splits)}}}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return (
            f"{path} is no dataset that save_to_disk of Hugging Face's datasets has made (no"
            " state.json)"
        )


def signature(path: Path, *, blocks: int = 8) -> Input:
    """Return the length of a file and a digest of some of its blocks, spread evenly.

    A change in place that leaves the length alone and lies between the blocks is not seen; reading
    everything would take as long as the preparation itself.
    """
    size = path.stat().st_size
    digest = blake2b(digest_size=8)
    with path.open("rb") as file:
        for offset in sample_offsets(size, blocks=blocks):
            digest.update(os.pread(file.fileno(), _BLOCK, offset))
    return Input(path=str(path), size=size, sample=digest.hexdigest())


def sample_offsets(size: int, *, blocks: int) -> list[int]:
    """Return where to look: the first and the last block, and some between.

    >>> sample_offsets(100_000, blocks=3), sample_offsets(10, blocks=3)
    ([0, 47952, 95904], [0])
    """
    last = size - _BLOCK
    if last <= 0 or blocks < 2:
        return [0]
    return sorted({last * number // (blocks - 1) for number in range(blocks)})


def as_now(inputs: Iterable[Input]) -> list[Input]:
    """Return the files of ``inputs`` as they are now, without those that cannot be read."""
    found = []
    for one in inputs:
        with suppress(OSError):
            found.append(signature(Path(one.path)))
    return found


def changed(before: Iterable[Input], now: Iterable[Input]) -> str:
    """Return which file differs and in what, "" if none does."""
    old = {one.path: one for one in before}
    new = {one.path: one for one in now}
    for path in sorted(old.keys() | new.keys()):
        was, is_ = old.get(path), new.get(path)
        if was is None:
            return f"{path} is new"
        if is_ is None:
            return f"{path} is gone"
        if was.size != is_.size:
            return f"{path} has {is_.size:,} bytes and had {was.size:,}"
        if was.sample != is_.sample:
            return f"{path} has other contents"
    return ""
