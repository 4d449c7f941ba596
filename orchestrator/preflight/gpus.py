"""Which GPUs are unfit, from what nvidia-smi said. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Collector, Findings, note
from orchestrator.preflight.smi import Links, Row

# Source: NVML, nvmlClocksEventReasons. Power capping (0x4) is how a busy GPU works.
_SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
# Below this part of its clock a GPU is called slow. One without work is as well; then no reason
# of the above is given.
_SLOW = 0.7
# What stands in place of a value when a GPU does not answer.
_BROKEN = ("requires reset", "is lost", "err!")
_RECOVERY = ("reset", "reboot", "drain p2p")
# CUDA reads CUDA_VISIBLE_DEVICES up to the first entry that names no device, such as Slurm's
# NoDevFiles.
_DEVICE = re.compile(r"\d+|GPU-.+|MIG-.+")
# Here the system keeps its page cache in the GPU's memory too (NVML, known issues).
_COHERENT = re.compile(r"G[HB]\d00")


def ours(rows: Sequence[Row], visible: str | None) -> tuple[list[Row], list[str]]:
    """Return the GPUs that this job sees, and entries of ``visible`` that name none of them.

    Args:
        rows: All that nvidia-smi shows.
        visible: CUDA_VISIBLE_DEVICES: indices or the beginnings of UUIDs; None if it is not set.
    """
    if visible is None:
        return list(rows), []
    entries = (name.strip() for name in visible.split(","))
    names = list(takewhile(_DEVICE.fullmatch, entries))
    found = [(name, _named(rows, name)) for name in names]
    return [row for _, row in found if row], [name for name, row in found if row is None]


def _named(rows: Sequence[Row], name: str) -> Row | None:
    for row in rows:
        if row.text("index") == name or (name[:4] == "GPU-" and row.text("uuid").startswith(name)):
            return row
    return None


def judge_failure(text: str, expected: Expected) -> Findings:
    """Return what it means that nvidia-smi gave no table; ``text`` is what it said."""
    said = text.strip() or "nothing"
    if expected.gpus is None:
        return note(f"nvidia-smi: {said}")
    found = Collector()
    found.problem("gpus", f"nvidia-smi shows no GPU; it says: {said}")
    return found.findings()


def judge_count(rows: Sequence[Row], expected: Expected, visible: str | None) -> Findings:
    """Return whether there are as many GPUs as workers."""
    found = Collector()
    if expected.gpus is None or expected.mig or "MIG" in (visible or ""):
        return found.findings()
    seen, missing = ours(rows, visible)
    listed = len(seen) + len(missing)
    if missing:
        found.problem(
            "gpus", f"CUDA_VISIBLE_DEVICES={visible}: nvidia-smi shows no GPU {', '.join(missing)}"
        )
    elif visible is not None and listed < expected.gpus:
        found.problem(
            "gpus",
            f"CUDA_VISIBLE_DEVICES={visible} shows {listed} GPUs to {expected.gpus} workers",
            kind="job",
        )
    elif listed < expected.gpus:
        found.problem("gpus", f"{listed} GPUs, and {expected.gpus} are needed")
    return found.findings()


def judge_state(rows: Iterable[Row], expected: Expected) -> Findings:
    """Return GPUs that nvidia-smi itself calls broken, sliced ones, and those of another model."""
    found = Collector()
    for row in rows:
        broken = [v for v in row.fields.values() if any(sign in v.lower() for sign in _BROKEN)]
        action = row.text("gpu_recovery_action")
        if broken:
            found.problem("gpus", f"{_name(row)} does not answer: {broken[0].strip('[]')}")
        elif action.lower() in _RECOVERY:
            found.problem("gpus", f"{_name(row)}: the driver asks for this recovery: {action}")
        elif row.text("reset_status.reset_required").lower() == "yes":
            found.problem("gpus", f"{_name(row)}: the driver asks for a reset")
        elif action.lower() not in ("", "none", "unknown"):
            found.note(f"{_name(row)}: the driver asks for this recovery: {action}")
        if row.text("mig.mode.current").lower() == "enabled" and not expected.mig:
            found.problem("gpus", f"{_name(row)} is in MIG mode; ranks on slices cannot use NCCL")
        if expected.gpu_model and not _is_model(row.text("name"), expected.gpu_model):
            found.note(
                f"{_name(row)} is a {row.text('name')}, and the site has {expected.gpu_model}"
            )
    return found.findings()


def _is_model(name: str, model: str) -> bool:
    """Return whether the name of a GPU may be of ``model``; compares the first word, "H100"."""
    first = model.replace("_", "-").split("-")[0].split()[0].lower()
    return not name or first in name.lower()


def judge_rows(remapped: Iterable[Row]) -> Findings:
    """Return GPUs whose memory has run out of spare rows.

    With a remapping that is only pending new jobs run as well and as right as before: the driver
    keeps off the page.

    Source: NVIDIA, GPU memory error management (A100 and later), error recovery flags.
    """
    found = Collector()
    for row in remapped:
        if row.text("remapped_rows.failure").lower() in ("yes", "1"):
            found.problem("gpus", f"{_name(row)}: a row of its memory could not be remapped")
        elif row.text("remapped_rows.pending").lower() in ("yes", "1"):
            found.note(f"{_name(row)}: a row of its memory is remapped at the next reset")
    return found.findings()


def judge_ecc(rows: Iterable[Row], expected: Expected) -> Findings:
    """Return GPUs with uncorrected memory errors since the driver was loaded.

    Those of a whole life have been remapped, and say nothing about today.
    """
    found = Collector()
    for row in rows:
        recent = row.number("ecc.errors.uncorrected.volatile.total") or 0
        ever = row.number("ecc.errors.uncorrected.aggregate.total") or 0
        if recent > expected.uncorrected_ecc:
            found.problem("ecc", f"{_name(row)}: {recent:.0f} uncorrected memory errors")
        elif ever > expected.uncorrected_ecc:
            found.note(f"{_name(row)}: {ever:.0f} uncorrected memory errors in its life")
        if row.text("retired_pages.pending").lower() == "yes":
            found.note(f"{_name(row)}: a page of its memory is retired at the next reboot")
    return found.findings()


def judge_memory(
    rows: Iterable[Row], expected: Expected, processes: Mapping[str, Sequence[Row]]
) -> Findings:
    """Return GPUs that somebody else uses; ``processes`` are those on each, by UUID."""
    found = Collector()
    for row in rows:
        used_gib = (row.number("memory.used") or 0) / 1024
        if used_gib > expected.gpu_memory_used_gib and not _COHERENT.search(row.text("name")):
            by = "; ".join(_process(p) for p in processes.get(row.text("uuid"), ()))
            found.problem(
                "memory", f"{_name(row)}: {used_gib:.1f} GiB in use by {by or 'unknown processes'}"
            )
    return found.findings()


def _process(row: Row) -> str:
    return f"{row.text('process_name') or 'a process'} (pid {row.text('pid')})"


def judge_clocks(rows: Iterable[Row], expected: Expected) -> Findings:
    """Return GPUs that are slowed down or hot before they have any work."""
    found = Collector()
    for row in rows:
        reasons = _reasons(row)
        clock, most = row.number("clocks.sm"), row.number("clocks.max.sm")
        if reasons and clock is not None and most and clock < _SLOW * most:
            why = ", ".join(reasons)
            found.problem("clocks", f"{_name(row)}: {clock:.0f} of {most:.0f} MHz: {why}")
        degrees = row.number("temperature.gpu") or 0
        if degrees >= expected.gpu_temperature_c:
            found.problem("clocks", f"{_name(row)}: {degrees:.0f} degrees Celsius without work")
    return found.findings()


def _reasons(row: Row) -> list[str]:
    newer, older = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
    mask = row.bits(newer) | row.bits(older)
    return [name for bit, name in _SLOWED.items() if mask & bit]


def judge_links(links: Sequence[Links], rows: Iterable[Row]) -> Findings:
    """Return GPUs with fewer NVLink links than the best of this job's GPUs."""
    uuids = {row.text("uuid") for row in rows}
    seen = [gpu for gpu in links if gpu.uuid in uuids]
    most = max((gpu.active for gpu in seen), default=0)
    found = Collector()
    for gpu in seen:
        if gpu.active < most:
            down = f" (inactive: {', '.join(map(str, gpu.inactive))})" if gpu.inactive else ""
            found.problem("nvlink", f"GPU {gpu.index}: {gpu.active} of {most} NVLink links{down}")
    return found.findings()


def _name(row: Row) -> str:
    """Return what a GPU is called.

    Remapped rows come without the index, a lost GPU may come without its UUID.
    """
    uuid = row.text("uuid") or row.text("gpu_uuid")
    index = row.text("index")
    if index and uuid:
        return f"GPU {index} ({uuid})"
    return uuid or f"GPU {index}"
