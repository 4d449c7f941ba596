"""Ask nvidia-smi about the GPUs of this node."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.preflight import gpus
from orchestrator.preflight.children import Output, start
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Collector, Findings, note, total
from orchestrator.preflight.smi import (
    HEALTH,
    IDENTITY,
    PROCESSES,
    ROWS,
    Row,
    query,
    read_links,
    read_rows,
    unknown_field,
    without,
)

CHECKS = ("gpus", "memory", "ecc", "clocks", "nvlink")
# The job before this one may still be letting go of a GPU, and HW slowdown may also be reported
# during a change of clocks (NVML): what passes within this many looks is nobody's fault.
LOOKS = 3
PAUSE_S = 2.0
# For one answer. Without persistence mode each of them waits for the driver to start all GPUs.
ANSWER_S = 45.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What nvidia-smi said: a table, or in ``failure`` why there is none."""

    rows: tuple[Row, ...] = ()
    failure: Output | None = None


def check_gpus(expected: Expected, *, visible: str | None, deadline: float) -> Findings:
    """Return what there is to say about the GPUs of this node.

    Args:
        expected: What the job needs.
        visible: CUDA_VISIBLE_DEVICES.
        deadline: For all of it, in seconds of time.monotonic().
    """
    if not expected.asks(*CHECKS):
        return Findings()
    answer = ask("gpu", IDENTITY + HEALTH, deadline=deadline)
    if answer is None:
        return Findings() if expected.gpus is None else note("there is no nvidia-smi here")
    if answer.failure is not None:
        return _failed(answer.failure, expected)
    mine, _ = gpus.ours(answer.rows, visible)
    found = []
    if expected.asks("gpus"):
        found.append(gpus.judge_count(answer.rows, expected, visible))
        found += [gpus.judge_state(mine, expected), _rows(mine, deadline)]
    if expected.asks("ecc"):
        found.append(gpus.judge_ecc(mine, expected))
    if expected.asks("nvlink"):
        found.append(_links(mine, deadline))
    return total([*found, _passing(mine, expected, visible, deadline)])


def ask(kind: str, fields: Sequence[str], *, deadline: float) -> Answer | None:
    """Return the table of ``fields``; None where there is no nvidia-smi.

    Fields that the driver does not know are asked for by their older names, or left out.
    """
    while True:
        child = start(query(kind, fields))
        if child is None:
            return None
        output = child.finish(min(deadline, time.monotonic() + ANSWER_S))
        rows = tuple(read_rows(output.text, fields)) if output.code is not None else ()
        fewer = without(fields, unknown_field(output.text))
        if fewer == tuple(fields):
            # A GPU that is lost may end the command with an error, and the others be shown.
            return Answer(rows) if rows or output.code == 0 else Answer(failure=output)
        fields = fewer


def _failed(output: Output, expected: Expected) -> Findings:
    if output.code is not None:
        return gpus.judge_failure(output.text, expected)
    found = Collector()
    if expected.gpus is None:
        return note("nvidia-smi gave no answer in time")
    found.problem("gpus", "nvidia-smi gave no answer in time: the driver or a GPU hangs")
    return found.findings()


def _rows(mine: Sequence[Row], deadline: float) -> Findings:
    answer = ask("remapped-rows", ROWS, deadline=deadline)
    uuids = {row.text("uuid") for row in mine}
    rows = answer.rows if answer else ()
    return gpus.judge_rows(row for row in rows if row.text("gpu_uuid") in uuids)


def _links(mine: Sequence[Row], deadline: float) -> Findings:
    child = start(["nvidia-smi", "nvlink", "--status"])
    if child is None:
        return Findings()
    return gpus.judge_links(read_links(child.finish(deadline).text), mine)


def _passing(
    rows: Sequence[Row], expected: Expected, visible: str | None, deadline: float
) -> Findings:
    """Return what is wrong and stays so while one looks again."""
    found = _momentary(rows, expected, {})
    for _ in range(LOOKS - 1):
        if not found.problems or time.monotonic() + PAUSE_S >= deadline:
            break
        time.sleep(PAUSE_S)
        answer = ask("gpu", IDENTITY + HEALTH, deadline=deadline)
        if answer is None or answer.failure is not None:
            break
        rows, _ = gpus.ours(answer.rows, visible)
        found = _momentary(rows, expected, {})
    return _momentary(rows, expected, _processes(deadline)) if found.problems else found


def _momentary(
    rows: Sequence[Row], expected: Expected, processes: dict[str, list[Row]]
) -> Findings:
    found = []
    if expected.asks("memory"):
        found.append(gpus.judge_memory(rows, expected, processes))
    if expected.asks("clocks"):
        found.append(gpus.judge_clocks(rows, expected))
    return total(found)


def _processes(deadline: float) -> dict[str, list[Row]]:
    answer = ask("compute-apps", PROCESSES, deadline=deadline)
    by_gpu: dict[str, list[Row]] = {}
    for row in answer.rows if answer else ():
        by_gpu.setdefault(row.text("gpu_uuid"), []).append(row)
    return by_gpu
