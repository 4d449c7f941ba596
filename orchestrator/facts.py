"""What the run directory tells about a run's attempts. Reads, never writes."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import store, vitals
from orchestrator.attempt import Attempt, RankError
from orchestrator.layout import AttemptLayout, RunLayout

# Larger than any step and any time in seconds: what is larger was not written by us.
_LARGE = 1e15
# Errors of ranks that only noticed that another one was gone.
_SECONDARY = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out",
    "timed out",
    "DistBackendError",
    "ncclRemoteError",
    "peer",
    "VoteError",
)


def attempts(layout: RunLayout) -> list[Attempt]:
    """Return the attempts of a run, oldest first."""
    steps = _last_steps(layout)
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


def _numbers(layout: RunLayout) -> list[int]:
    try:
        return store.attempt_numbers(layout)
    except OSError:
        return []


def _last_steps(layout: RunLayout) -> dict[int, int]:
    """Return the last step of each attempt that the metrics know."""
    found: dict[int, int] = {}
    for line in store.read_lines(layout.metrics):
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
    )


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
    causes = [e for e in found if not any(word in e.exception for word in _SECONDARY)]
    return min(causes or found, key=lambda error: error.at, default=None)


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
