"""Start the bandwidth sweep, one rank a GPU on all nodes at once, and judge this node by it."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.bandwidth.finding import find, gbs_text, why_slow
from orchestrator.bandwidth.record import Record
from orchestrator.preflight import ranks
from orchestrator.preflight.children import Child, Output
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Collector, Findings, note

_MODULE = "orchestrator.preflight.sweep"
# Other nodes may be at their checks for longer, and import torch later.
_IMPORT_S = 60
# For communicators, and for the last collective to end.
_SPARE_S = 45
# Not torchrun's: it takes its own port the moment the last node is done here. Nor its neighbour,
# which programs take.
_PORT_OFFSET = 2


def limit_s(expected: Expected) -> int:
    """Return the most that the check takes, in seconds."""
    return _wait_s(expected) + expected.bandwidth_timeout_s + _SPARE_S


def _wait_s(expected: Expected) -> int:
    others_s = expected.all_reduce_timeout_s if expected.asks("all_reduce") else 0
    return expected.timeout_s + others_s + _IMPORT_S


def check_bandwidth(
    expected: Expected, *, host: str, temporary: str, environment: Mapping[str, str]
) -> Findings:
    """Return what there is to say about this node after the sweep over all nodes.

    Never a problem but that this node is clearly slower than the others.

    Args:
        expected: How many ranks a node has, how long to measure, and what the site promises.
        host: This node's name, as Slurm writes it.
        temporary: A folder on the node's own disk.
        environment: Of node.sh.
    """
    if expected.workers * _nodes(environment) < 2:
        return note("bandwidth: not measured: one rank alone has nobody to talk to")
    try:
        folder = Path(tempfile.mkdtemp(prefix="bandwidth-", dir=temporary))
    except OSError as problem:
        return note(f"bandwidth: not measured: {problem}")
    try:
        outputs = _run(expected, folder, environment)
        record = read(folder / "record.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if record is None:
        return note(f"bandwidth: not measured: {_last_words(outputs)}")
    return judge(record, host=host, before=_before(environment))


def _run(expected: Expected, folder: Path, environment: Mapping[str, str]) -> list[Output]:
    children = [
        Child(
            [sys.executable, "-m", _MODULE, *_options(expected, folder)],
            env={**ranks.environment(environment), **place},
        )
        for place in places(expected, environment)
    ]
    deadline = ranks.wait(children, time.monotonic() + limit_s(expected))
    return [child.finish(deadline) for child in children]


def _options(expected: Expected, folder: Path) -> Iterator[str]:
    yield from ("--budget", str(expected.bandwidth_timeout_s))
    yield from ("--wait", str(_wait_s(expected)))
    yield from ("--ratio", str(expected.bandwidth_ratio))
    if expected.busbw_gbs is not None:
        yield from ("--expected", str(expected.busbw_gbs))
    yield from ("--copy", str(folder / "record.json"))


def places(expected: Expected, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what torchrun would set for each rank of this node.

    Raises:
        KeyError: A variable that the batch script sets is missing.
    """
    workers, node = expected.workers, int(environment.get("SLURM_NODEID", "0"))
    common = {
        "WORLD_SIZE": str(workers * _nodes(environment)),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": environment["FSDPQ_HEAD"],
        "MASTER_PORT": str(int(environment["FSDPQ_PORT"]) + _PORT_OFFSET),
    }
    return [
        {**common, "RANK": str(node * workers + local), "LOCAL_RANK": str(local)}
        for local in range(workers)
    ]


def _nodes(environment: Mapping[str, str]) -> int:
    return int(environment.get("SLURM_JOB_NUM_NODES", "1"))


def _last_words(outputs: Sequence[Output]) -> str:
    """Return the last line of the rank that failed first, as far as that can be told."""
    failed = [output for output in outputs if output.code not in (0, None)]
    lines = [line for output in failed for line in output.text.splitlines() if line.strip()]
    return lines[-1] if lines else "it was not over in time"


def read(path: Path) -> Record | None:
    """Return the record in ``path``; None where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Record.from_json(data) if isinstance(data, dict) else None


def _before(environment: Mapping[str, str]) -> Record | None:
    """Return what was measured before the last attempt."""
    path = Path(environment["FSDPQ_ATTEMPT_DIR"])
    if not path.name.isdigit():
        return None
    return read(path.parent / str(int(path.name) - 1) / "bandwidth.json")


def judge(record: Record, *, host: str, before: Record | None) -> Findings:
    """Return what speaks against the node ``host``, and on the first node what is odd otherwise.

    A node that was named in the last attempt too and is here all the same is one that the
    scheduler has nothing better for: slow is better than never.
    """
    found, finding = Collector(), find(record)
    if host in finding.nodes:
        why = why_slow(host, finding, record)
        if before is not None and host in find(before).nodes:
            found.note(f"bandwidth: slow again, and there is no other node to be had: {why}")
        else:
            found.problem("bandwidth", why)
    if record.nodes[:1] == (host,):
        for pair in finding.pairs[:3]:
            gbs, usual = gbs_text(pair.bus_gbs), gbs_text(finding.reference_gbs or 0.0)
            found.note(f"bandwidth: {pair.a} and {pair.b} reach {gbs} GB/s, usual are {usual} GB/s")
        if finding.below and finding.expectation is not None:
            found.note(f"bandwidth: {finding.expectation:.0%} of what the site profile promises")
    return found.findings()
