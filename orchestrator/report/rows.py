"""One attempt in a run's status. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.decide import Action, Over, Restart
from orchestrator.judging.classify import of_attempt, too_little
from orchestrator.rundir.attempt import Attempt
from orchestrator.runstore.sight import Sight


@dataclass(frozen=True, slots=True)
class Told:
    """What a watcher wrote down of an attempt's end; nothing where none did.

    Attributes:
        at: When it was written down, in seconds since 1970.
    """

    cause: str | None = None
    why: str = ""
    at: float = 0.0


def ended(attempts: Sequence[Attempt], told: Mapping[int, Told]) -> list[Attempt]:
    """Return the attempts with an end for those whose own shell did not write it down.

    One that was killed is over, at the latest, when a watcher says so, or when the next begins.
    """
    found = []
    for index, attempt in enumerate(attempts):
        bounds = [told[attempt.number].at] if attempt.number in told else []
        if bounds and index + 1 < len(attempts):
            bounds += [t for t in (attempts[index + 1].started_at,) if t is not None]
        found.append(
            replace(attempt, ended_at=min(bounds))
            if attempt.ended_at is None and bounds
            else attempt
        )
    return found


def row(
    index: int,
    attempts: Sequence[Attempt],
    sight: Sight,
    action: Action,
    *,
    told: Mapping[int, Told],
    submitted_at: float | None,
) -> dict[str, Any]:
    """Return what is told of the attempt at ``index``; see `data.status` for the rest."""
    attempt = attempts[index]
    lives = index == len(attempts) - 1 and alive(attempt, sight)
    later = attempts[index + 1] if index + 1 < len(attempts) else None
    state, cause = ("running", None) if lives else _end(attempt, later)
    if not lives and index == len(attempts) - 1 and isinstance(action, Over | Restart):
        cause = action.cause.value
    known = told.get(attempt.number, Told())
    resumed = attempt.resumed
    return {
        "attempt": attempt.number,
        "job_id": attempt.job_id,
        "restart": attempt.restart,
        "state": state,
        "cause": known.cause or cause,
        "nodes": attempt.nodes,
        "switches": list(attempt.switches),
        "first_step": resumed + 1 if resumed is not None else None,
        "last_step": attempt.last_step,
        "steps_lost": None if lives else _lost(index, attempts, sight.seen.checkpoint_step),
        "queued_s": _queued(index, attempts, submitted_at),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "network": attempt.network.verdict if attempt.network else None,
        "why": None if lives else known.why or None,
    }


def alive(attempt: Attempt, sight: Sight) -> bool:
    """Return whether the attempt's job is alive."""
    if attempt.action or sight.seen.finished:
        return False
    jobs = sight.seen.jobs or ()
    return any(
        job.live and job.job_id == attempt.job_id and job.restart in (None, attempt.restart)
        for job in jobs
    )


def _end(attempt: Attempt, later: Attempt | None) -> tuple[str, str]:
    """Return how an attempt ended, from its own files; ``later`` is the next attempt."""
    if attempt.outcome == "finished" or attempt.action == "finished":
        return "finished", "finished"
    if told := too_little(attempt):
        return "stopped", told.cause.value
    if attempt.outcome == "stopped":
        return "stopped", "notice, saved"
    found = of_attempt(attempt)
    if attempt.error is not None or attempt.outcome:
        return "failed", found.cause.value if found else attempt.outcome
    if found is not None:
        return "ended", found.cause.value
    if not attempt.action and later is not None and _same_job(attempt, later):
        # Its batch shell never came to its end, and Slurm started the same job again: a lost node,
        # or a preemption without grace.
        return "ended", "put back by Slurm"
    if attempt.noticed:
        return "ended", "notice, not saved"
    return "ended", "ended without notice"


def _same_job(attempt: Attempt, later: Attempt) -> bool:
    return bool(attempt.job_id) and attempt.job_id == later.job_id


def _lost(index: int, attempts: Sequence[Attempt], checkpoint_step: int | None) -> int | None:
    """Return how many steps of an attempt were done again, or will have to be."""
    done = attempts[index].last_step
    if done is None or attempts[index].outcome == "finished":
        return 0
    later = (attempt.resumed for attempt in attempts[index + 1 :])
    kept = next((step for step in later if step is not None), checkpoint_step or 0)
    return max(0, done - kept)


def _queued(index: int, attempts: Sequence[Attempt], submitted_at: float | None) -> float | None:
    """Return the seconds from the end of the attempt before, or the submission, to the start."""
    start = attempts[index].started_at
    before = attempts[index - 1] if index else None
    since = (before.ended_at or before.heard_at) if before else submitted_at
    return None if start is None or since is None else round(max(0.0, start - since), 1)
