"""When `auto` saves: rank 0 looks at each vote, and the vote tells the others.

The interval is estimated anew at each save and, until ten steps have been timed, at each vote. A
step that suddenly takes much longer must not leave more at risk than was configured, so rank 0
looks at the clock too.
"""

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from orchestrator.checkpoint.interval import Interval, choose
from orchestrator.runtime import past, savelog
from orchestrator.runtime.environment import Environment

_TIMED = 10
_WINDOW = 50
# An interval that changes by less is not written down again.
_NEWS = 0.1


class Pacer:
    """Says when a save is due. For rank 0 alone."""

    def __init__(
        self,
        env: Environment,
        *,
        step: int,
        mtbf_s: float,
        max_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._env = env
        self._mtbf_s = mtbf_s
        self._max_s = max_interval_s
        self._clock = clock
        self._past = past.earlier(env)
        self._saves = past.saves(env.run)
        self._notice_s = past.notice_s(env.run)
        self._steps_s: deque[float] = deque(maxlen=_WINDOW)
        self._began = self._looked_at = self._safe_at = clock()
        self._looked_step = self._safe_step = step
        self._told: Interval | None = None
        self._in_background = False
        self.interval: Interval | None = None

    def due(self, step: int) -> bool:
        """Return whether ``step`` is to be saved; called once after each step."""
        now = self._clock()
        if step > self._looked_step:
            self._steps_s.append((now - self._looked_at) / (step - self._looked_step))
        self._looked_at, self._looked_step = now, step
        if not self._steps_s or step <= self._safe_step or self._in_background:
            return False
        if self.interval is None or len(self._steps_s) < _TIMED:
            self.interval = self._choose(now)
        # The next step may take as long as the last one did.
        soon_s = now - self._safe_at + max(self.interval.step_s, self._steps_s[-1])
        return step - self._safe_step >= self.interval.steps or soon_s > self._max_s

    def saved(self, step: int, *, blocked_s: float) -> None:
        """Take note of a save that has just been published, and blocked all along."""
        self._mark(step)
        self._learn(step, past.Cost(blocked_s, blocked_s))

    def began(self, step: int) -> None:
        """Take note of a save that goes on in the background. None is due until it `ended`."""
        self._mark(step)
        self._in_background = True

    def ended(self, step: int, *, blocked_s: float, seconds: float) -> None:
        """Take note of a save in the background that has been published after ``seconds``."""
        self._in_background = False
        self._learn(step, past.Cost(blocked_s, seconds, blocking=False))

    def _mark(self, step: int) -> None:
        self._looked_at = self._safe_at = self._clock()
        self._looked_step = self._safe_step = step

    def _learn(self, step: int, cost: past.Cost) -> None:
        self._saves = [*self._saves, cost][-past.NEWEST_SAVES :]
        if self._steps_s:
            self.interval = self._choose(self._clock())
            self._tell(step, self.interval)

    def _choose(self, now: float) -> Interval:
        usual = past.usual(self._saves)
        behind = [save.seconds for save in usual if not save.blocking]
        return choose(
            saves_s=[save.blocked_s for save in usual],
            whole_s=median(behind) if behind else None,
            step_s=max(median(self._steps_s), 1e-6),
            past=self._past,
            running_s=now - self._began,
            prior_s=self._mtbf_s,
            max_s=self._max_s,
            notice_s=self._notice_s,
        )

    def _tell(self, step: int, interval: Interval) -> None:
        if self._told is not None and _alike(self._told, interval):
            return
        self._told = interval
        savelog.record_interval(
            self._env,
            step=step,
            steps=interval.steps,
            seconds=interval.seconds,
            save_s=interval.save_s,
            step_s=interval.step_s,
            mtbf_s=interval.mtbf_s,
            notice_saves=interval.notice_saves,
            why=interval.why,
        )


def _alike(old: Interval, new: Interval) -> bool:
    near = abs(new.steps - old.steps) <= _NEWS * old.steps
    return near and old.notice_saves == new.notice_saves
