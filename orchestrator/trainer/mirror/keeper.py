"""Keeps a target up to date, whatever happens to it."""

import sys
import time
from collections.abc import Callable

from orchestrator.redact import redacted
from orchestrator.trainer.mirror.curve import Curve, Line
from orchestrator.trainer.mirror.target import Target

_REST_S = 300.0


class Keeper:
    """Tells a target of the lines that it lacks. One that fails is left alone for five minutes.

    After that it is begun anew, with all that it missed. The first failure is told, no more.
    """

    def __init__(
        self,
        target: Target,
        make_curve: Callable[[], Curve],
        *,
        now: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._target, self._make_curve = target, make_curve
        self._now, self._say = now, say
        self._curve: Curve | None = None
        self._step = 0
        self._again_at: float | None = 0.0
        self._told = False

    def keep(self) -> None:
        """Tell all lines there are."""
        if self._again_at is None or self._now() < self._again_at:
            return
        self._attempt(self._tell)

    def close(self) -> None:
        """Tell the rest, and end."""
        self.keep()
        if self._curve is not None:
            self._attempt(self._target.close)

    def _tell(self) -> None:
        if self._curve is None:
            curve = self._make_curve()
            self._step, self._curve = self._target.open(), curve
        news = False
        while (lines := self._curve.read()) is not None:
            for line in lines:
                if (news_of := self._news(line)) is not None:
                    self._target.write(news_of)
                    self._step, news = line["step"], True
        if news:
            self._target.flush()

    def _news(self, line: Line) -> Line | None:
        """Return what the target has not heard of ``line``, None if that is nothing."""
        if line["step"] > self._step:
            return line
        if line["step"] == self._step and line.get("again") is True:  # a validation made up for
            return {key: line[key] for key in ("step", "at", "eval") if key in line}
        return None

    def _attempt(self, do: Callable[[], None]) -> None:
        try:
            do()
        # Foreign libraries raise what they like, and none of it may be more than a word.
        except Exception as problem:
            self._curve = None
            missing = isinstance(problem, ImportError)
            self._again_at = None if missing else self._now() + _REST_S
            self._complain(problem, missing=missing)

    def _complain(self, problem: Exception, *, missing: bool) -> None:
        if self._told:
            return
        self._told = True
        what = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        then = "install it" if missing else f"trying again every {_REST_S / 60:.0f} minutes"
        self._say(
            f"fsdpq: {self._target.name} does not get the metrics ({redacted(what)}); {then}."
            " Training goes on, and metrics.jsonl has them all"
        )
