"""What the run directory tells about a run's attempts. Reads, never writes."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.bandwidth import Record
from orchestrator.evidence import errors, reading
from orchestrator.fabric import record as network
from orchestrator.nodelist import expand, node_of
from orchestrator.rundir import environment
from orchestrator.rundir.attempt import Attempt, Finding, RankError, Weight
from orchestrator.rundir.environment import Change, Environment
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import store, vitals

# Larger than any step and any time in seconds: what is larger was not written by us.
_LARGE = 1e15
# Attempts among which a file is looked for that not all of them have.
_LOOKED_AT = 32


def attempts(
    layout: RunLayout, *, metrics: Iterable[Mapping[str, Any]] | None = None
) -> list[Attempt]:
    """Return the attempts of a run, oldest first.

    ``metrics`` are lines of its metrics that were read already; without them all are read.
    """
    steps = _last_steps(store.read_lines(layout.metrics) if metrics is None else metrics)
    return [_attempt(layout.attempt(n), n, steps.get(n)) for n in _numbers(layout)]


def latest(layout: RunLayout) -> Attempt | None:
    """Return the newest attempt without reading the metrics of the whole run."""
    numbers = _numbers(layout)
    return _with_vitals(layout, numbers[-1]) if numbers else None


def _with_vitals(layout: RunLayout, number: int) -> Attempt:
    """Return an attempt with what its nodes say of it, unless its batch shell has ended it."""
    files = layout.attempt(number)
    attempt = _attempt(files, number, None)
    if attempt.action:
        return attempt
    hang, straggler = vitals.read(files, now=time.time())
    return replace(attempt, hang=hang, straggler=straggler)


def newest_job_id(layout: RunLayout) -> str:
    """Return the job id of the newest attempt, or ""."""
    numbers = _numbers(layout)
    return Facts(layout.attempt(numbers[-1]).start).text("job_id") if numbers else ""


def one(layout: RunLayout, number: int) -> Attempt | None:
    """Return an attempt without looking into its logs; None where there is no such one."""
    known = number in _numbers(layout)
    return _attempt(layout.attempt(number), number, None) if known else None


def ended(layout: RunLayout, attempt: Attempt) -> Attempt:
    """Return an attempt that has ended, with what its logs say.

    This costs some megabytes of reading, so it is for an end that is to be decided on or shown.
    """
    number = attempt.number
    logs = layout.attempt(number)
    try:
        findings = reading.read(logs, layout.output, number=number, nodes=attempt.nodes)
    except OSError:  # a file system that fails tells nothing, and must not hide the other runs
        return attempt
    error = attempt.error
    if error is None or errors.read(error.exception).weight is Weight.ECHO:
        error = _told(findings) or error
    return replace(attempt, findings=findings, error=error)


def _told(findings: tuple[Finding, ...]) -> RankError | None:
    """Return the first rank's end from the logs, for a rank that could not write it down."""
    for found in findings:
        if found.rank is not None and found.weight < Weight.ECHO:
            return RankError(
                rank=found.rank,
                node=found.node,
                step=found.step,
                exception=found.what,
                at=found.at or 0.0,
            )
    return None


def _numbers(layout: RunLayout) -> list[int]:
    try:
        return store.attempt_numbers(layout)
    except OSError:
        return []


def _last_steps(metrics: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the last step of each attempt that the metrics know."""
    found: dict[int, int] = {}
    for line in metrics:
        attempt, step = line.get("attempt"), line.get("step")
        if isinstance(attempt, int) and isinstance(step, int):
            found[attempt] = max(step, found.get(attempt, 0))
    return found


def _attempt(layout: AttemptLayout, number: int, metric_step: int | None) -> Attempt:
    start = Facts(layout.start)
    end = Facts(layout.exit)
    status = Facts(layout.status)
    resume = Facts(layout.resume)
    progress = Facts(layout.progress)
    steps = (status.whole("step"), progress.whole("step"), metric_step)
    known = [step for step in steps if step is not None]
    return Attempt(
        number=number,
        job_id=start.text("job_id"),
        restart=start.whole("restart") or 0,
        nodes=start.text("nodes"),
        started_at=start.number("started_at"),
        ended_at=end.number("ended_at") or status.number("at"),
        resumed=(resume.whole("step") or 0) if resume.found else status.whole("first_step"),
        last_step=max(known) if known else None,
        saved_step=status.whole("saved_step"),
        outcome=status.text("outcome"),
        reason=status.text("reason"),
        action=end.text("action"),
        why=end.text("why"),
        noticed=any(layout.root.glob("notice.*")),
        heard_at=progress.number("at") or start.number("started_at"),
        quarantined=tuple(_quarantined(resume)),
        error=_first_error(layout.errors),
        switches=tuple(start.texts("switches")),
        reclaimed=tuple(_reclaimed(layout, start.text("nodes"))),
        network=network.read(layout.fabric),
    )


def bandwidth(layout: RunLayout) -> Record | None:
    """Return what the newest bandwidth sweep of a run has measured; None where there was none."""
    for number in reversed(_numbers(layout)[-_LOOKED_AT:]):
        if (data := store.read_json(layout.attempt(number).bandwidth)) is not None:
            return Record.from_json(data)
    return None


def _reclaimed(layout: AttemptLayout, nodes: str) -> Iterable[str]:
    """Yield the nodes that the cloud has announced to take back, as Slurm spells them."""
    for path in sorted(layout.reclaims.glob("node-*.json")):
        if node := node_of(Facts(path).text("node"), expand(nodes)):
            yield node


def environment_changes(layout: RunLayout) -> tuple[Change, ...]:
    """Return what changed in the environment from attempt to attempt."""
    numbers = _numbers(layout)
    if len(numbers) < 2:
        return ()
    lists: dict[str, dict[str, str] | None] = {}
    found = [_environment(layout, number, lists) for number in numbers]
    return environment.changes([item for item in found if item is not None])


def _environment(
    layout: RunLayout, number: int, lists: dict[str, dict[str, str] | None]
) -> Environment | None:
    """Return what attempt ``number`` ran with; ``lists`` keeps the lists that were read."""
    record = store.read_json(layout.attempt(number).environment)
    if record is None:
        return None
    name = record.get("packages")
    if not isinstance(name, str) or not name.isalnum():
        return environment.parse(number, record, None)
    if name not in lists:
        lists[name] = _packages(layout.environments / f"{name}.txt")
    return environment.parse(number, record, lists[name])


def _packages(path: Path) -> dict[str, str] | None:
    with suppress(OSError):
        return environment.parse_packages(path.read_text(encoding="utf-8", errors="replace"))
    return None


def number(value: object) -> float | None:
    """Return ``value`` if it is a number that a step, a time or a loss may be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if abs(value) >= _LARGE else value


class Facts:
    """A JSON file that may be missing, torn, or of any content; a value of another type is none."""

    def __init__(self, path: Path) -> None:
        content = store.read_json(path)
        self.found = content is not None
        self._content = content or {}

    def text(self, key: str) -> str:
        """Return the text at ``key``, or ""."""
        value = self._content.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> float | None:
        """Return the number at ``key``."""
        return number(self._content.get(key))

    def whole(self, key: str) -> int | None:
        """Return the whole number at ``key``."""
        value = self.number(key)
        return value if isinstance(value, int) else None

    def texts(self, key: str) -> list[str]:
        """Return the texts in the list at ``key``."""
        value = self._content.get(key)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def items(self, key: str) -> list[dict[str, Any]]:
        """Return the objects in the list at ``key``."""
        value = self._content.get(key)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _quarantined(resume: Facts) -> list[tuple[int, str]]:
    found = []
    for entry in resume.items("quarantined"):
        step = number(entry.get("step"))
        found.append((step if isinstance(step, int) else 0, str(entry.get("reason", ""))))
    return found


def _first_error(folder: Path) -> RankError | None:
    """Return the earliest error that is a cause and not an echo of another rank's end."""
    found = [error for path in sorted(folder.glob("rank-*.json")) if (error := _error(path))]
    return min(
        found, key=lambda error: (errors.read(error.exception).weight, error.at), default=None
    )


def _error(path: Path) -> RankError | None:
    error = Facts(path)
    if not error.found:
        return None
    return RankError(
        rank=error.whole("rank"),
        node=error.text("node"),
        step=error.whole("step"),
        exception=error.text("exception"),
        at=error.number("at") or 0.0,
    )
