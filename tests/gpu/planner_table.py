"""The table of tests.gpu.planner, as it stands in RESULTS.md."""

from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]
GIB = 2**30

_HEAD = """\
## What `fsdpq plan` predicts, and what the trainer takes

`python -m tests.gpu.planner` on {gpu}, {took:.0f} s in all.
GiB; the largest of all ranks; the error is that of the prediction, positive where it is too high.

| configuration | tensors: predicted | measured | error | allocator: predicted | measured | error \
| CUDA, NCCL: predicted | measured | step, s |
|---|---|---|---|---|---|---|---|---|---|
"""


def report(rows: Sequence[Row], *, gpu: str, took_s: float) -> str:
    """Return the table, and what it comes to."""
    body = "\n".join(_line(row) for row in rows if not row["trouble"])
    left = "\n".join(f"- {row['name']}: {row['trouble']}" for row in rows if row["trouble"])
    told = "\n".join(_summary(rows))
    missing = f"\nNot measured:\n\n{left}\n" if left else ""
    return f"{_HEAD.format(gpu=gpu, took=took_s)}{body}\n\n{told}\n{missing}"


def _line(row: Row) -> str:
    said, took = row["predicted"], row["measured"]
    cells = [f"{row['name']}: {row['what']}"]
    for kind in ("allocated", "reserved"):
        cells += [_gib(said[kind]), _gib(took.get(kind)), _error(said[kind], took.get(kind))]
    cells += [_gib(said["context"]), _gib(took.get("context")), f"{took['step_s']:.3f}"]
    return f"| {' | '.join(cells)} |"


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"


def _error(said: float, took: float | None) -> str:
    return "-" if not took else f"{100 * (said / took - 1):+.1f} %"


def errors(rows: Sequence[Row], kind: str) -> list[float]:
    """Return the errors in per cent of what was measured."""
    found = [row for row in rows if not row["trouble"] and row["measured"].get(kind)]
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
    if not errors(rows, "allocated"):
        yield "No GPU: the predictions stand alone."
