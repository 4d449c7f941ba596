"""Which files to read, and whose they are."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

# NCCL_DEBUG_FILE=%h.%p.log, as node.sh sets it.
_NCCL_LOG = re.compile(r"(?P<host>[^\s/]+?)\.(?P<pid>\d{1,9})\.log$")
_NUMBER = re.compile(r"(\d{1,6})$")
# Endings that logs have; "slurm-123.out" is one, a checkpoint's shard is not.
_LOGS = frozenset({"", ".log", ".txt", ".out", ".err", ".stdout", ".stderr"})
_MOST_FILES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file, and what its name says of who wrote it.

    Attributes:
        host, pid: "" and 0 where the name does not say.
        rank: None likewise.
        traces: Whether it may hold what Python and Slurm print, besides NCCL's lines.
    """

    path: Path
    host: str = ""
    pid: int = 0
    rank: int | None = None
    traces: bool = True


@dataclass(slots=True)
class Chosen:
    """The files to read, and those that are left out.

    Attributes:
        missing: What is neither a file nor a folder with logs in it.
    """

    sources: list[Source] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)


def of_paths(paths: Iterable[Path]) -> Chosen:
    """Return the logs among ``paths``; of a folder all files below it that are named like logs."""
    chosen = Chosen()
    for path in paths:
        found = [path] if path.is_file() else _below(path)
        if not found:
            chosen.missing.append(path)
        chosen.sources += [_source(file) for file in found]
    return chosen


_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


def no_text(path: Path) -> str:
    """Return what a file is instead of a log: packed, or a program; "" where it may be a log."""
    with suppress(OSError), path.open("rb") as file:
        start = file.read(4)
        packed = [f"packed ({name})" for magic, name in _MAGIC.items() if start.startswith(magic)]
        return packed[0] if packed else "a program" if start == b"\x7fELF" else ""
    return ""


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    named = (path for path in folder.rglob("*") if path.suffix in _LOGS and path.is_file())
    return sorted(islice(named, _MOST_FILES))


def _source(path: Path) -> Source:
    match = _NCCL_LOG.fullmatch(path.name)
    if match is None:
        return Source(path=path)
    return Source(path=path, host=match["host"], pid=int(match["pid"]))


def nccl_logs(folder: Path) -> list[Source]:
    """Return NCCL's logs of an attempt: the first of each host, then the second of each, ...

    Whoever cannot read all of them has seen all hosts that way.
    """
    try:
        paths = sorted(islice(folder.glob("*.log"), _MOST_FILES))
    except OSError:
        return []
    by_host: dict[str, list[Source]] = {}
    for path in paths:
        found = _source(path)
        source = Source(path=path, host=found.host, pid=found.pid, traces=False)
        by_host.setdefault(found.host, []).append(source)
    return list(_in_turn(list(by_host.values())))


def _in_turn(lists: Sequence[Sequence[Source]]) -> Iterator[Source]:
    for place in range(max(map(len, lists), default=0)):
        yield from (items[place] for items in lists if place < len(items))


def rank_logs(folder: Path, *, nproc_per_node: int, nodes: Sequence[str]) -> list[Source]:
    """Return what torchrun keeps of an attempt's ranks: node-K/<random>/attempt_0/<L>/std*.log."""
    try:
        paths = sorted(islice(folder.glob("node-*/*/attempt_0/*/std*.log"), _MOST_FILES))
    except OSError:
        return []
    return [_rank_log(path, nproc_per_node, nodes) for path in paths]


def _rank_log(path: Path, nproc_per_node: int, nodes: Sequence[str]) -> Source:
    node, local = _number(path.parents[3].name), _number(path.parent.name)
    known = node is not None and local is not None
    return Source(
        path=path,
        host=nodes[node] if node is not None and node < len(nodes) else "",
        rank=node * nproc_per_node + local if known else None,  # type: ignore[operator]
        traces=False,
    )


def _number(name: str) -> int | None:
    match = _NUMBER.search(name)
    return int(match[1]) if match else None
