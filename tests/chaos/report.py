"""The result of a storm as Markdown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .judge import Evidence, steps_lost
from .runner import Result
from .strike import Strike
from .world import PARTITIONS

CHECKED = (
    "every loss that any attempt wrote is, bit for bit, that of a run that nobody disturbed",
    "over the steps that count, each sample was used once",
    "nobody wrote anything once a newer attempt had begun",
    "each attempt resumed from the newest checkpoint that no fault had damaged, and no good one"
    " was set aside",
    "no two jobs of a run ran at the same time, by Slurm's accounting",
    "an attempt that met nothing but a notice lost no step",
    "nothing was left in the queue or on any host",
)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def struck(strikes: Sequence[Strike]) -> list[Strike]:
    return [strike for strike in strikes if strike.at is not None]


def runs_table(result: Result) -> str:
    head = ["run", "partition", "steps", "attempts", "faults", "steps done again", "problems"]
    rows = [_run_row(run, result) for run in result.runs]
    return table(head, rows)


def _run_row(run: Evidence, result: Result) -> list[object]:
    name = f"storm-{run.number + 1}"
    own = [s for s in struck(run.strikes) if s.fault.run == run.number]
    attempts = [row["attempt"] for row in run.status["attempts"]]
    lost = sum(steps_lost(run.ranks, attempt) for attempt in attempts)
    bad = sum(text.startswith(f"{name}:") for text in result.problems)
    faults = sum(not s.fault.traits.weather for s in own)
    partition = PARTITIONS[run.number % len(PARTITIONS)]
    return [name, partition, run.goal, len(attempts), faults, lost, bad]


def causes_table(result: Result) -> str:
    """Why attempts ended, in fsdpq's words, and what it cost."""
    ends: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for run in result.runs:
        for row in run.status["attempts"]:
            ends[row["cause"]] += 1
            lost[row["cause"]] += steps_lost(run.ranks, row["attempt"])
    rows = [(cause, count, lost[cause]) for cause, count in ends.most_common()]
    return table(["an attempt ended by", "times", "steps done again"], rows)


def kinds_table(result: Result) -> str:
    kinds = Counter(strike.fault.kind for strike in struck(result.strikes))
    return table(["fault", "times"], kinds.most_common())


def summary(result: Result) -> str:
    count = len(struck(result.strikes))
    attempts = sum(len(run.status["attempts"]) for run in result.runs)
    verdict = f"{len(result.problems)} problems" if result.problems else "no problem"
    return (
        f"{count} faults in {result.took_s / 60:.1f} minutes, {len(result.runs)} runs,"
        f" {attempts} attempts: {verdict}"
    )


def markdown(result: Result, *, title: str, command: str, machine: str) -> str:
    """The whole page."""
    parts = [
        f"# {title}",
        f"`{command}`: {summary(result)}.",
        machine,
        "Checked of each run:\n\n" + "\n".join(f"- {line};" for line in CHECKED),
        runs_table(result),
        causes_table(result),
        kinds_table(result),
        "Every fault, when it struck:",
        "```text\n" + "\n".join(strike.text for strike in result.strikes) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"
