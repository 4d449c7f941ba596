"""Read what the files of an attempt say about its end. Bounded: also for thousands of ranks.

The time that this takes is paid once for an end, when it is decided on or shown; a look at all runs
does without.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.evidence import errors, files, reports, scan, tracebacks
from orchestrator.evidence.batch import BATCH, HINT
from orchestrator.evidence.nccl import NCCL
from orchestrator.evidence.pattern import short
from orchestrator.evidence.reports import RankExit
from orchestrator.evidence.stderr import STDERR
from orchestrator.nodelist import expand, node_of
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import AttemptLayout

_TAIL_BYTES = 128 << 10
_ERROR_FILES = 4096
_NODE_FOLDERS = 64
_STDERR_FILES = 128
_NCCL_FILES = 512
_FINDINGS = 64
_TEXT = 16384
# What node.sh ends with where it did not start the workers, and what bash does.
NOT_PASSED = 76
_NOT_FOUND = (126, 127)
# torchrun's folders: node-<node rank>/<random>/attempt_0/<local rank>/.
_NUMBER = re.compile(r"(\d{1,6})$")


def read(layout: AttemptLayout, batch_log: Path, *, number: int, nodes: str) -> tuple[Finding, ...]:
    """Return what is known of how an attempt ended, the root cause first.

    Args:
        layout: Its files.
        batch_log: What the batch shells of all attempts printed.
        number: The attempt's.
        nodes: Its nodes, as Slurm writes them.
    """
    names = expand(nodes)
    lines = files.batch_lines(batch_log, number)
    ends = [_End(end, node_of(end.host, names) or end.host) for end in reports.exits(lines)]
    files_of_ranks = _error_files(layout.errors)
    told = {finding.rank for finding in files_of_ranks if finding.weight < Weight.ECHO}
    checks = list(_preflight(layout.preflight))
    found = [
        *scan.findings((line for line in lines if HINT.search(line)), BATCH, file=str(batch_log)),
        *files_of_ranks,
        *_rank_logs(layout, ends, names, told=told),
        *_nccl_logs(layout.nccl),
        *checks,
        *_node_exits(layout.root, names, told={_index(Path(check.file)) for check in checks}),
    ]
    said = {f.rank for f in found if f.rank is not None and f.weight < Weight.ECHO}
    found += [
        reports.finding(end.exit, node=end.node)
        for end in ends
        if end.exit.killed or end.exit.rank not in said
    ]
    placed = [item for finding in found for item in _placed(finding, names)]
    return tuple(sorted(_with_rank(placed, ends), key=_order)[:_FINDINGS])


@dataclass(frozen=True, slots=True)
class _End:
    exit: RankExit
    node: str


def _order(finding: Finding) -> tuple[int, bool, float, bool]:
    """Sort key: the root cause, then the earliest, then what says more than that it failed."""
    vague = finding.kind in ("exception", "exit", "signal")
    named = bool(finding.node)
    at = finding.at if finding.at is not None else float("inf")
    return (finding.weight, not named and finding.weight is Weight.SLURM, at, vague)


def _placed(finding: Finding, nodes: tuple[str, ...]) -> list[Finding]:
    """Give a finding the name that Slurm has for its node; only such a one can be suspected."""
    spoken = expand(finding.node) if "[" in finding.node else (finding.node,)
    placed = []
    for host in spoken:
        node = node_of(host, nodes) if host else ""
        placed.append(
            replace(finding, node=node or host, suspect=finding.suspect and node in nodes)
        )
    return placed


def _with_rank(found: list[Finding], ends: Sequence[_End]) -> list[Finding]:
    """Name the rank that the kernel killed, which its own word does not."""
    killed = [end for end in ends if end.exit.code == -9]
    if not killed:
        return found
    return [
        replace(f, rank=killed[0].exit.rank, node=f.node or killed[0].node, at=killed[0].exit.at)
        if f.kind == "oom-kill" and f.node in ("", killed[0].node)
        else f
        for f in found
    ]


# --- errors/ ----------------------------------------------------------------------------------


def _error_files(folder: Path) -> list[Finding]:
    names = sorted(_names(folder, "rank-*.json"))[:_ERROR_FILES]
    return [finding for path in names if (finding := _error_file(path)) is not None]


def _error_file(path: Path) -> Finding | None:
    data = files.read_json(path)
    exception, trace = _text(data, "exception"), _text(data, "traceback")
    if not exception:
        return None
    finding = _meaning([exception, *tracebacks.last(trace)[1:]])
    return replace(
        finding,
        rank=_whole(data, "rank"),
        node=_text(data, "node"),
        step=_whole(data, "step"),
        at=_number(data, "at"),
        file=str(path),
    )


def _meaning(exceptions: Sequence[str]) -> Finding:
    """Return what an exception and those that it was raised from mean."""
    found = [errors.read(text[:_TEXT]) for text in exceptions]
    return min(found, key=lambda f: (f.weight, f.kind == "exception"))


# --- logs/ ------------------------------------------------------------------------------------


def _rank_logs(
    layout: AttemptLayout, ends: Sequence[_End], nodes: tuple[str, ...], *, told: set[int | None]
) -> Iterator[Finding]:
    """Yield what ranks printed; ``told`` are those whose error file says more."""
    first = {end.exit.rank: end for end in ends}
    ended = {end.node for end in ends}
    for path, rank, node in _stderr_files(layout.logs, first, nodes):
        text = files.tail(path, _TAIL_BYTES)
        yield from scan.findings(scan.lines(text), STDERR, rank=rank, node=node, file=str(path))
        # What was killed did not end by an exception, whatever it printed before.
        killed = rank in first and first[rank].exit.killed
        exceptions = [] if killed or rank in told else tracebacks.last(text)
        if not exceptions:
            continue
        line = exceptions[0].split("\n", 1)[0]
        finding = replace(_meaning(exceptions), rank=rank, node=node, file=str(path), line=line)
        if rank in first:
            yield replace(finding, at=_by_the_end_of(first[rank].exit.at))
        elif node in ended:
            # torchrun saw another rank of this node end first.
            yield replace(finding, weight=max(finding.weight, Weight.MAYBE))
        else:
            yield finding


def _by_the_end_of(second: float | None) -> float | None:
    """Return the latest that a time in whole seconds can mean: torchrun's have no fractions.

    An error file of the same second has its own time, and must not seem to come after it.
    """
    return None if second is None else second + 0.999


def _stderr_files(
    folder: Path, first: Iterable[int], nodes: tuple[str, ...]
) -> list[tuple[Path, int, str]]:
    """Return (path, rank, node) of ranks' logs: those of ranks that ended first come first."""
    found: list[tuple[int, int, Path]] = []
    for node in sorted(_names(folder, "node-*"), key=_index)[:_NODE_FOLDERS]:
        found += [
            (_index(node), _index(path.parent), path)
            for path in _names(node, "*/attempt_0/*/stderr.log")[:_STDERR_FILES]
        ]
    per_node = max((local for _, local, _ in found), default=0) + 1
    ranks = [
        (path, index * per_node + local, nodes[index] if index < len(nodes) else "")
        for index, local, path in found
    ]
    ended = set(first)
    return sorted(ranks, key=lambda item: (item[1] not in ended, item[1]))[:_STDERR_FILES]


# --- nccl/, preflight/, node-K.exit -----------------------------------------------------------


def _nccl_logs(folder: Path) -> Iterator[Finding]:
    for path in sorted(_names(folder, "*.log"))[:_NCCL_FILES]:
        host = re.sub(r"\.\d+\.log$", "", path.name)
        lines = scan.lines(files.tail(path, _TAIL_BYTES))
        yield from scan.findings(
            (line for line in lines if "WARN" in line), NCCL, node=host, file=str(path)
        )


def _preflight(folder: Path) -> Iterator[Finding]:
    for path in sorted(_names(folder, "node-*.json"))[:_ERROR_FILES]:
        data = files.read_json(path)
        problems = data.get("problems")
        if data.get("ok") is not False or not isinstance(problems, list):
            continue
        for problem in problems[:_FINDINGS]:
            if isinstance(problem, dict):
                found = _problem(problem, node=_text(data, "node"), at=_number(data, "at"))
                yield replace(found, file=str(path))


def _problem(problem: dict[str, Any], *, node: str, at: float | None) -> Finding:
    what, kind = short(_text(problem, "what")), _text(problem, "kind")
    full = kind == "storage" and errors.read(what).cause is Cause.DISK_FULL
    cause = {"job": Cause.CONFIGURATION}.get(kind, Cause.DISK_FULL if full else Cause.NODE_CHECK)
    return Finding(
        kind=f"check-{_text(problem, 'check') or 'node'}",
        cause=cause,
        weight=Weight.ROOT,
        what=f"did not pass its check: {what}",
        advice="Restart without this node, and tell your administrators"
        if kind == "node"
        else "Mend this, then `fsdpq requeue`",
        node=node,
        suspect=kind == "node",
        at=at,
    )


def _node_exits(folder: Path, nodes: tuple[str, ...], *, told: set[int]) -> Iterator[Finding]:
    """Yield what the exit codes of node.sh say where it did not come to start the workers.

    ``told`` are the node ranks whose check wrote down what it found.
    """
    for path in sorted(_names(folder, "node-*.exit"), key=_index)[:_ERROR_FILES]:
        text = files.tail(path, 16).strip()
        code = int(text) if text.isdigit() else 0
        index = _index(path)
        node = nodes[index] if index < len(nodes) else ""
        if code == NOT_PASSED and index not in told:
            yield Finding(
                kind="check",
                cause=Cause.NODE_CHECK,
                weight=Weight.OWN,
                what="did not pass its check",
                node=node,
                suspect=True,
                file=str(path),
            )
        if code in _NOT_FOUND:
            yield Finding(
                kind="interpreter",
                cause=Cause.CONFIGURATION,
                weight=Weight.MAYBE,
                what=f"could not start the job's Python (exit code {code})",
                advice="Does `python` of the job file exist on all nodes?",
                node=node,
                file=str(path),
            )


# --- small things -----------------------------------------------------------------------------


def _names(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(islice(folder.glob(pattern), 65536))
    except OSError:
        return []


def _index(path: Path) -> int:
    match = _NUMBER.search(path.stem if path.suffix in (".json", ".exit") else path.name)
    return int(match[1]) if match else 0


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _number(data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if fine and value is not None else None


def _whole(data: dict[str, Any], key: str) -> int | None:
    value = data.get(key)
    fine = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e15
    return int(value) if fine and value is not None else None
