"""What must be true of a run after the storm, from its ledger and Slurm's records. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import curve
from .ledger import Line
from .strike import Strike

# Seconds that a fault may go on to be felt once it is mended.
AFTERMATH_S = 20.0


@dataclass(frozen=True, slots=True)
class Span:
    """One start of a job in accounting, in seconds since 1970; `end` is None while it runs."""

    job_id: str
    state: str
    start: float
    end: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a run left.

    Attributes:
        goal: The last step that it was to do.
        finished: The step in its end mark; None without one.
        ranks: The ledger, one list a rank.
        status: What `fsdpq status --json` says.
        spans: All starts of its jobs.
        strikes: All faults, also those of other runs.
    """

    number: int
    goal: int
    finished: int | None
    ranks: Sequence[Sequence[Line]]
    status: dict[str, Any]
    spans: Sequence[Span]
    strikes: Sequence[Strike]


def problems(run: Evidence) -> list[str]:
    """Everything that is not as it must be; empty if the run is as if nothing had happened."""
    return [problem for check in CHECKS for problem in check(run)]


def _finished(run: Evidence) -> Iterator[str]:
    if run.finished != run.goal:
        yield f"its end mark says {run.finished}, and the goal was {run.goal}"
    if run.status["state"] != "finished":
        yield f"its state is {run.status['state']}: {run.status['next']}"


def _curve(run: Evidence) -> Iterator[str]:
    """Every loss that any attempt ever wrote is, bit for bit, that of an undisturbed run."""
    expected = curve.losses(run.goal, world_size=len(run.ranks))
    for rank, lines in enumerate(run.ranks):
        for line in _steps(lines):
            step = line["step"]
            if step > run.goal or line["loss"] != expected[step - 1]:
                yield f"attempt {line['attempt']}, rank {rank}: another loss at step {step}"


def _attempts_in_order(run: Evidence) -> Iterator[str]:
    """Nobody does anything once a newer attempt does: there never are two writers."""
    for rank, lines in enumerate(run.ranks):
        for before, line in pairwise(lines):
            if line["attempt"] < before["attempt"]:
                yield (
                    f"rank {rank}: attempt {line['attempt']} wrote {line['kind']} {line['step']}"
                    f" after attempt {before['attempt']} had begun"
                )


def _steps_in_order(run: Evidence) -> Iterator[str]:
    """Each attempt goes on from where it resumed and leaves no step out."""
    for rank, lines in enumerate(run.ranks):
        at = -1
        for line in lines:
            if line["kind"] == "step" and line["step"] != at + 1:
                yield f"attempt {line['attempt']}, rank {rank}: step {line['step']} after {at}"
            if line["kind"] in ("resumed", "step"):
                at = line["step"]


def _resumed_from_the_newest(run: Evidence) -> Iterator[str]:
    """Each attempt starts from the newest checkpoint but for those that were found damaged."""
    saved = {0}
    damaged = {item["step"] for item in run.status["quarantined"]}
    for line in run.ranks[0]:
        if line["kind"] == "saved":
            saved.add(line["step"])
        if line["kind"] == "resumed" and line["step"] < (newest := max(saved - damaged)):
            yield f"attempt {line['attempt']} resumed from {line['step']} instead of {newest}"


def _quarantined(run: Evidence) -> Iterator[str]:
    """Nothing was taken for damaged but what a fault had damaged."""
    hurt = {strike.damaged for strike in run.strikes if strike.fault.run == run.number}
    for item in run.status["quarantined"]:
        if item["step"] not in hurt:
            yield f"the good checkpoint of step {item['step']} was set aside: {item['reason']}"


def _samples(run: Evidence) -> Iterator[str]:
    """Over the steps that count, all ranks together used each sample once."""
    used: list[int] = []
    for step, attempt in sorted(_counting(run).items()):
        for rank, lines in enumerate(run.ranks):
            found = [n for n in _steps(lines) if (n["step"], n["attempt"]) == (step, attempt)]
            if len(found) != 1:
                yield f"step {step}, rank {rank}: done {len(found)} times by attempt {attempt}"
            used += [sample for line in found for sample in line["samples"]]
    if sorted(used) != list(range(run.goal * curve.BATCH)):
        yield f"{len(used)} samples were used, {len(set(used))} different ones"


def _counting(run: Evidence) -> dict[int, int]:
    """Step to the last attempt that did it."""
    counting: dict[int, int] = {}
    for lines in run.ranks:
        for line in _steps(lines):
            counting[line["step"]] = max(line["attempt"], counting.get(line["step"], 0))
    return counting


def _jobs(run: Evidence) -> Iterator[str]:
    """No two jobs of the run ran at the same time, by Slurm's accounting."""
    spans = sorted(run.spans, key=lambda span: span.start)
    for before, span in pairwise(spans):
        if before.end is None or span.start < before.end:
            yield (
                f"job {span.job_id} started at {span.start:.0f}, and job {before.job_id}"
                f" ({before.state}) ended at {before.end}"
            )
    if not spans:
        yield "accounting knows no job of it"


def _notices(run: Evidence) -> Iterator[str]:
    """An attempt that was told in time, and met nothing else, lost no step."""
    for strike in run.strikes:
        attempt = strike.attempts.get(run.number, 0)
        if strike.fault.run != run.number or not _told_in_time(strike) or _disturbed(run, strike):
            continue
        if lost := steps_lost(run.ranks, attempt):
            yield f"attempt {attempt} lost {lost} steps to fault {strike.text}"


def _told_in_time(strike: Strike) -> bool:
    return strike.at is not None and strike.fault.traits.notice


def _disturbed(run: Evidence, strike: Strike) -> bool:
    """Whether another fault was felt by the run between a notice and the end of it."""
    start, end = strike.at or 0.0, max(strike.until, strike.at or 0.0)
    return any(
        other is not strike
        and other.at is not None
        and other.at < end + AFTERMATH_S
        and other.until + AFTERMATH_S > start
        and (other.fault.run == run.number or other.fault.traits.weather or other.hosts)
        for other in run.strikes
    )


def steps_lost(ranks: Sequence[Sequence[Line]], attempt: int) -> int:
    """How many steps of an attempt were done again."""
    done = [n["step"] for lines in ranks for n in _steps(lines) if n["attempt"] == attempt]
    later = (n for n in ranks[0] if n["kind"] == "resumed" and n["attempt"] > attempt)
    resumed = next((line["step"] for line in later), None)
    return 0 if resumed is None else max(0, max(done, default=0) - resumed)


def _steps(lines: Sequence[Line]) -> Iterator[Line]:
    return (line for line in lines if line["kind"] == "step")


CHECKS = (
    _finished,
    _curve,
    _attempts_in_order,
    _steps_in_order,
    _resumed_from_the_newest,
    _quarantined,
    _samples,
    _jobs,
    _notices,
)
