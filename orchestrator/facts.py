"""What the run directory tells about a run's attempts. Reads, never writes."""

from pathlib import Path
from typing import Any

from orchestrator import store
from orchestrator.attempt import Attempt, RankError
from orchestrator.layout import AttemptLayout, RunLayout

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
)


def attempts(layout: RunLayout) -> list[Attempt]:
    """Return the attempts of a run, oldest first."""
    steps = _last_steps(layout)
    return [_attempt(layout.attempt(n), n, steps.get(n)) for n in _numbers(layout)]


def latest(layout: RunLayout) -> Attempt | None:
    """Return the newest attempt without reading the metrics of the whole run."""
    numbers = _numbers(layout)
    return _attempt(layout.attempt(numbers[-1]), numbers[-1], None) if numbers else None


def _numbers(layout: RunLayout) -> list[int]:
    try:
        names = [path.name for path in layout.attempts.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def _last_steps(layout: RunLayout) -> dict[int, int]:
    """Return the last step of each attempt that the metrics know."""
    found: dict[int, int] = {}
    for line in store.read_lines(layout.metrics):
        attempt, step = line.get("attempt"), line.get("step")
        if isinstance(attempt, int) and isinstance(step, int):
            found[attempt] = max(step, found.get(attempt, 0))
    return found


def _attempt(layout: AttemptLayout, number: int, metric_step: int | None) -> Attempt:
    start = store.read_json(layout.start) or {}
    end = store.read_json(layout.exit) or {}
    status = store.read_json(layout.status) or {}
    resume = store.read_json(layout.resume) or {}
    progress = store.read_json(layout.progress) or {}
    steps = (status.get("step"), progress.get("step"), metric_step)
    known = [step for step in steps if isinstance(step, int)]
    return Attempt(
        number=number,
        job_id=str(start.get("job_id", "")),
        restart=int(start.get("restart", 0)),
        nodes=str(start.get("nodes", "")),
        started_at=start.get("started_at"),
        ended_at=end.get("ended_at", status.get("at")),
        resumed=(resume.get("step") or 0) if resume else status.get("first_step"),
        last_step=max(known) if known else None,
        saved_step=status.get("saved_step"),
        outcome=str(status.get("outcome", "")),
        reason=str(status.get("reason", "")),
        action=str(end.get("action", "")),
        why=str(end.get("why", "")),
        noticed=any(layout.root.glob("notice.*")),
        heard_at=progress.get("at", start.get("started_at")),
        quarantined=tuple(_quarantined(resume)),
        error=_first_error(layout.errors),
    )


def _quarantined(resume: dict[str, Any]) -> list[tuple[int, str]]:
    entries = resume.get("quarantined", [])
    return [(int(e.get("step", 0)), str(e.get("reason", ""))) for e in entries]


def _first_error(folder: Path) -> RankError | None:
    """Return the earliest error that is a cause and not an echo of another rank's end."""
    found = [error for path in sorted(folder.glob("rank-*.json")) if (error := _error(path))]
    causes = [e for e in found if not any(word in e.exception for word in _SECONDARY)]
    return min(causes or found, key=lambda error: error.at, default=None)


def _error(path: Path) -> RankError | None:
    data = store.read_json(path)
    if data is None:
        return None
    return RankError(
        rank=data.get("rank"),
        node=str(data.get("node", "")),
        step=data.get("step"),
        exception=str(data.get("exception", "")),
        at=float(data.get("at") or 0.0),
    )
