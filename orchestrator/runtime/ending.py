"""How an attempt ends: its status file, and the mark of a run whose last step is done."""

import time

from orchestrator.checkpoint import newest_wanted
from orchestrator.checkpoint.durable import write_json
from orchestrator.errors import CheckpointError
from orchestrator.runtime.beginning import Beginning
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import check_fence
from orchestrator.runtime.progress import Progress
from orchestrator.runtime.pulse import Pulse
from orchestrator.runtime.reports import Outcome, status, write_status
from orchestrator.runtime.saves import Saves


class Ending:
    """Says how this attempt ends, by where it began and what it saved."""

    def __init__(
        self, env: Environment, pulse: Pulse, progress: Progress, beginning: Beginning, saves: Saves
    ) -> None:
        self._env, self._pulse, self._progress = env, pulse, progress
        self._beginning, self._saves = beginning, saves

    def mark(self, step: int) -> None:
        """Write the end mark, on rank 0.

        Raises:
            SupersededError: A newer attempt has started.
        """
        if self._env.rank == 0:
            check_fence(self._env)
            mark = {"step": step, "attempt": self._env.attempt, "at": time.time()}
            write_json(self._env.run.finished, mark)

    def report(self, outcome: Outcome, *, step: int, saved: int | None = None, reason: str) -> None:
        """Say that the attempt ends after ``step`` steps. Rank 0 writes it down."""
        self._pulse.end()
        if self._env.rank == 0:
            self._progress.write(step)
            write_status(self._env, self._status(outcome, step=step, saved=saved, reason=reason))

    def fail(self, outcome: Outcome, *, step: int, reason: str) -> None:
        """Say that this rank failed; of several failures the first is kept."""
        content = self._status(outcome, step=step, saved=None, reason=reason)
        write_status(self._env, content, replace=False)

    def _status(
        self, outcome: Outcome, *, step: int, saved: int | None, reason: str
    ) -> dict[str, object]:
        if self._beginning.step is None:  # it ended before it knew where to resume
            self._beginning.step = self._saves.saved_step = self._to_begin_at()
        first = self._beginning.step or 0
        return status(
            self._env,
            outcome=outcome,
            reason=reason,
            first_step=first,
            step=max(step, first),
            saved_step=saved if saved is not None else self._saves.saved_step,
        )

    def _to_begin_at(self) -> int | None:
        """Return the step that this attempt meant to begin at; None where there is no telling."""
        try:
            found = newest_wanted(self._env.checkpoints)
        except CheckpointError:
            return None
        return found.step if found else None
