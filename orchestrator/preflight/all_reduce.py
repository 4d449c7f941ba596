"""Start the small all-reduce, one rank a GPU, and hear what came of it."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.preflight import ranks
from orchestrator.preflight.children import Child, Output
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings, note
from orchestrator.preflight.reports import STAGES, Report, judge

_MODULE = "orchestrator.preflight.collective"


def check_all_reduce(
    expected: Expected, *, temporary: str, environment: Mapping[str, str]
) -> Findings:
    """Return what came of an all-reduce over the GPUs of this node.

    Takes as long as importing torch, nearly: 5 s in all on two H200 (tests/gpu/RESULTS.md).

    Args:
        expected: How many ranks, and how long to wait.
        temporary: A folder on the node's own disk.
        environment: Of the ranks.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="all-reduce-", dir=temporary))
    except OSError as problem:
        return note(f"all_reduce: not run: {problem}")
    try:
        return _run(expected, folder, environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(expected: Expected, folder: Path, environment: Mapping[str, str]) -> Findings:
    workers, timeout_s = expected.workers, expected.all_reduce_timeout_s
    began = time.monotonic()
    words = [str(workers), str(folder), str(timeout_s)]
    children = [
        Child([sys.executable, "-m", _MODULE, str(r), *words], env=_environment(environment))
        for r in range(workers)
    ]
    deadline = ranks.wait(children, began + timeout_s)
    outputs = [child.finish(deadline) for child in children]
    return judge(_reports(folder, outputs), waited_s=time.monotonic() - began)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    # All ranks are here, so gloo needs no name of this host that resolves.
    return {"GLOO_SOCKET_IFNAME": "lo", **ranks.environment(inherited)}


def _reports(folder: Path, outputs: Sequence[Output]) -> list[Report]:
    return [_report(folder, rank, output) for rank, output in enumerate(outputs)]


def _report(folder: Path, rank: int, output: Output) -> Report:
    """Return the report of a rank; one that ended without a word has its last line instead."""
    try:
        said = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = {}
    ended = output.code is not None and said.get("stage") != STAGES[-1]
    if ended and not said.get("error"):
        lines = output.text.split(os.linesep)
        last = next((line for line in reversed(lines) if line.strip()), "no word")
        said = {**said, "error": f"exit code {output.code}: {last}"}
    return Report.from_json(rank, said)
