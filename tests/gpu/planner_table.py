"""The table of tests.gpu.planner, as it stands in RESULTS.md."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.gpu.results import about_lines, markdown_table

Row = dict[str, Any]
GIB = 2**30
KINDS = ("allocated", "reserved", "context")

_HEADS = (
    "configuration", "tensors: predicted", "measured", "error", "allocator: predicted", "measured",
    "error", "CUDA, NCCL: predicted", "measured", "step, s: predicted", "measured", "error",
)  # fmt: skip
_NEW = "Met for the first time: the planner was last mended before these were measured."
_MET = "Met before: the planner was mended on these very figures."


def report(ran_on: dict[str, str]) -> Callable[[Sequence[Row]], str]:
    """Return what makes Markdown of the rows so far."""

    def text(rows: Sequence[Row]) -> str:
        lines = about_lines(ran_on)
        lines += ["GiB; the largest of all ranks; an error is positive where too much is said.", ""]
        for new, title in ((True, _NEW), (False, _MET)):
            if some := [row for row in rows if not row["trouble"] and row["new"] is new]:
                lines += [title, "", *markdown_table(_HEADS, [_cells(row) for row in some]), ""]
                lines += [*_summary(some), ""]
        left = [f"- {row['name']}: {row['trouble']}" for row in rows if row["trouble"]]
        return "\n".join([*lines, *(["Not measured:", "", *left] if left else [])]).rstrip()

    return text


def _cells(row: Row) -> list[str]:
    said, took = row["predicted"], row["measured"]
    cells = [f"{row['name']}: {row['what']}"]
    for kind in ("allocated", "reserved"):
        cells += [_gib(said[kind]), _gib(took.get(kind)), _error(said[kind], took.get(kind))]
    cells += [_gib(said["context"]), _gib(took.get("context"))]
    if said["step_s"] is None or "allocated" not in took:  # without a GPU the time is no H200's
        return [*cells, "-", f"{took['step_s']:.3f}", "-"]
    error = _error(said["step_s"], took["step_s"])
    return [*cells, f"{said['step_s']:.3f}", f"{took['step_s']:.3f}", error]


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"


def _error(said: float, took: float | None) -> str:
    return "-" if not took else f"{100 * (said / took - 1):+.1f} %"


def errors(rows: Sequence[Row], kind: str) -> list[float]:
    """Return the errors in per cent of what was measured."""
    found = [
        row
        for row in rows
        if not row["trouble"] and row["measured"].get(kind) and row["predicted"][kind]
    ]
    return [100 * (row["predicted"][kind] / row["measured"][kind] - 1) for row in found]


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    for kind, word in (("allocated", "tensors"), ("reserved", "allocator")):
        if found := errors(rows, kind):
            within = sum(abs(error) <= 5 for error in found)
            low = sum(error < -2 for error in found)
            yield (
                f"{word}: {within} of {len(found)} within 5 %, from {min(found):+.1f} to"
                f" {max(found):+.1f} %; {low} too low by more than 2 %"
            )
    if found := errors(rows, "allocated") and errors(rows, "step_s"):
        near, fair = (sum(abs(error) <= most for error in found) for most in (5, 15))
        yield (
            f"steps: {near} of {len(found)} within 5 %, {fair} within 15 %, from {min(found):+.1f}"
            f" to {max(found):+.1f} %"
        )
    if not errors(rows, "allocated"):
        yield "No GPU: the predictions stand alone."


def record(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what was measured as lines of planner_measured.MEASURED."""
    for row in rows:
        took = row.get("measured", {})
        if "allocated" in took:
            sizes = ", ".join(f"{took[kind] / GIB:.2f}" for kind in KINDS)
            yield f'    "{row["name"]}": ({sizes}, {took["step_s"]:.3f}),'
