"""What the ranks of the small all-reduce say, and what follows from it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from orchestrator.preflight.findings import Collector, Findings

# What a rank passes, in order; its report names the last one that it has reached.
STAGES = ("started", "device", "group", "done")
_WAITS_IN = {
    "": "to start and to import torch",
    "started": "for its GPU",
    "device": "for the others",
    "group": "in the all-reduce",
}
# So many times slower than the middle one of its siblings, which differ by a few per cent.
_FAR = 2.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank said last.

    Attributes:
        stage: The last of `STAGES` that it reached, "" if none.
        error: What it raised, "" if nothing.
        sum_ok: Whether the all-reduce gave the right sum; None before that.
        work_s: Time for the same piece of work on each GPU, alone, in seconds.
    """

    rank: int
    stage: str = ""
    error: str = ""
    sum_ok: bool | None = None
    work_s: float | None = None
    device: str = ""

    @classmethod
    def from_json(cls, rank: int, data: Mapping[str, Any]) -> "Report":
        """Return what the file of ``rank`` says; what is missing there is what it began with."""
        work_s, sum_ok = data.get("work_s"), data.get("sum_ok")
        return cls(
            rank,
            stage=str(data.get("stage", "")),
            error=str(data.get("error", "")),
            sum_ok=sum_ok if isinstance(sum_ok, bool) else None,
            work_s=float(work_s) if isinstance(work_s, int | float) else None,
            device=str(data.get("device", "")),
        )


def judge(reports: Sequence[Report], *, waited_s: float) -> Findings:
    """Return which ranks failed, hung, computed wrongly or are far slower than the others.

    Args:
        reports: One a rank.
        waited_s: How long those that have not come through were waited for.
    """
    found = Collector()
    if reports and all(r.stage == "" and r.error for r in reports):
        found.note(f"all_reduce: not run: {reports[0].error}")
        return found.findings()
    for report in reports:
        if report.error and not _follows(report, reports):
            found.problem("all_reduce", f"{_name(report)} failed: {report.error}")
        elif report.sum_ok is False:
            found.problem("all_reduce", f"{_name(report)} has a wrong sum after the all-reduce")
    if not any(report.error for report in reports):
        _judge_silent(reports, waited_s, found)
    _judge_speed(reports, found)
    return found.findings()


def _follows(report: Report, reports: Sequence[Report]) -> bool:
    """Return whether a rank only failed because another one did so earlier on its way."""
    stages = [STAGES.index(r.stage) if r.stage else -1 for r in reports if r.error]
    return bool(report.stage) and STAGES.index(report.stage) > min(stages)


def _judge_silent(reports: Sequence[Report], waited_s: float, found: Collector) -> None:
    """Name those that are furthest behind: the others wait for them."""
    silent = [report for report in reports if report.stage != STAGES[-1]]
    if not silent:
        return
    behind = min(STAGES.index(r.stage) if r.stage else -1 for r in silent)
    last = [r for r in silent if (STAGES.index(r.stage) if r.stage else -1) == behind]
    who = ", ".join(_name(report) for report in last)
    found.problem(
        "all_reduce", f"{who} still waited {_WAITS_IN[last[0].stage]} after {waited_s:.0f} s"
    )


def _judge_speed(reports: Sequence[Report], found: Collector) -> None:
    for report in reports:
        others = [r.work_s for r in reports if r is not report and r.work_s is not None]
        if report.work_s is None or not others or "cuda" not in report.device:
            continue
        usual = median_low(others)
        if report.work_s > _FAR * usual:
            found.problem(
                "all_reduce",
                f"{_name(report)} took {report.work_s * 1e3:.0f} ms for what takes the others"
                f" {usual * 1e3:.0f} ms",
            )


def _name(report: Report) -> str:
    return f"GPU {report.rank}" if report.device != "cpu" else f"rank {report.rank}"
