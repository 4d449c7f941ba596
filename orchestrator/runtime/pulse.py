"""This rank's progress, as it tells it to the monitor of its node.

The training thread only replaces a value in memory, which costs microseconds. A thread of its own
writes it to the node's own disk and puts off the timer of the stacks as long as the training thread
gets on. Once it does not, the timer goes off by itself, whoever holds the interpreter. Nothing here
can fail the training.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from orchestrator.checkpoint.durable import write_text
from orchestrator.rundir.beat import ENDING, STARTING, TRAINING, Beat, beats_folder, local_stack
from orchestrator.rundir.limits import ENOUGH_STEPS, Limits
from orchestrator.rundir.stack_files import publish
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.stack_timer import StackTimer

_EVERY_S = 0.5
_REMEMBERED = 50
# The stacks are written at the limit; what is slower, or may get stuck, comes after them.
_AFTER_S = 1.0


class Pulse:
    """What this rank is at, since when, and how long that may take."""

    def __init__(
        self, env: Environment, *, limits: Limits | None = None, local_dir: Path | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._env = env
        self._local_dir = local_dir
        self._steps: deque[float] = deque(maxlen=_REMEMBERED)
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._stepped_at: float | None = None
        self._longest_save_s = 0.0
        self.beat = Beat(
            rank=env.rank,
            local_rank=env.local_rank,
            world_size=env.world_size,
            pid=os.getpid(),
            step=0,
            phase=STARTING,
            since=time.time(),
            moved=time.monotonic(),
            limit_s=self._allow(self.limits.start_s),
        )

    def start(self) -> None:
        """Begin to tell. Without a folder on the node's own disk nobody is told anything."""
        if self._local_dir is None:
            return
        with contextlib.suppress(OSError, RuntimeError):
            teller = Teller(self, self._env, self._local_dir)
            teller.tell()  # by now the timer runs, whatever this thread does next
            threading.Thread(target=teller.run, name="fsdpq-beats", daemon=True).start()

    # -- what the training thread says ---------------------------------------------------------

    def step(self, step: int) -> None:
        """Say that ``step`` steps are done."""
        now = time.monotonic()
        if self._stepped_at is not None:
            self._steps.append(now - self._stepped_at)
        self._stepped_at = now
        self.beat = replace(
            self.beat,
            step=step,
            phase=TRAINING,
            since=self.beat.since if self.beat.phase == TRAINING else time.time(),
            moved=now,
            limit_s=self._allow(self.limits.of_step(self._steps)),
            step_s=_middle(self._steps),
        )

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        """Say that something else than steps is done in the block, for ``limit_s`` at most.

        Without a limit it is that of a save, which grows with saves that took long.
        """
        before, began = self.beat, time.monotonic()
        grows = limit_s is None
        self._enter(name, self.limits.of_save(self._longest_save_s) if limit_s is None else limit_s)
        try:
            yield
            if grows:
                self._longest_save_s = max(self._longest_save_s, time.monotonic() - began)
        finally:
            self._enter(before.phase, before.limit_s)
            if self._stepped_at is not None:  # no part of the step
                self._stepped_at = self.beat.moved

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the block waits for other ranks."""
        self.beat = replace(self.beat, waiting=True)
        try:
            yield
        finally:
            self.beat = replace(self.beat, waiting=False)

    def voted(self, waited_s: float) -> None:
        """Say that all ranks came to the vote, and how long this one waited for the others.

        That is progress too: a script may vote at each step and never say which step it is.
        """
        if self._stepped_at is not None:
            self._waits.append(waited_s)
        self.beat = replace(self.beat, moved=time.monotonic(), wait_s=_middle(self._waits))

    def end(self) -> None:
        """Say that there are no more steps to come."""
        self._enter(ENDING, self.limits.min_s)

    def _enter(self, phase: str, limit_s: float | None) -> None:
        self.beat = replace(
            self.beat,
            phase=phase,
            since=time.time(),
            moved=time.monotonic(),
            limit_s=self._allow(limit_s),
        )

    def _allow(self, limit_s: float | None) -> float | None:
        return limit_s if self.limits.enabled else None


def _middle(times: deque[float]) -> float | None:
    return round(median(times), 6) if len(times) >= ENOUGH_STEPS else None


class Teller:
    """Writes the beats of a pulse, and sets the timer of its stacks. Runs in its own thread."""

    def __init__(self, pulse: Pulse, env: Environment, local_dir: Path) -> None:
        self._pulse = pulse
        self._file = beats_folder(local_dir) / f"rank-{env.rank}"
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._stack = local_stack(local_dir, env.rank)
        self._published = env.files.stacks / f"rank-{env.rank}.txt"
        self._mark = env.run.stalled
        self._timer = StackTimer(self._stack)
        self._told: Beat | None = None
        self._timed: tuple[float, float | None] | None = None
        self._late_since: float | None = None  # the `moved` of the beat whose delay was looked into
        self._collectives: dict[str, int] = {}

    def run(self) -> None:
        """Tell for ever; the thread ends with the process."""
        while True:
            with contextlib.suppress(OSError, RuntimeError):
                self.tell()
            time.sleep(_EVERY_S)

    def tell(self) -> None:
        """Tell the newest beat, once.

        Raises:
            OSError: The node's own disk does not take it.
        """
        beat = self._pulse.beat
        self._set_timer(beat)
        if self._is_late(beat) and self._late_since != beat.moved:
            self._late_since = beat.moved
            self._look_into_it()
            beat = self._pulse.beat
        told = replace(beat, collectives=self._collectives)
        if told != self._told:
            write_text(self._file, told.to_text(), durable=False)
            self._told = told

    def _set_timer(self, beat: Beat) -> None:
        wanted = (beat.moved, beat.limit_s)
        if wanted == self._timed:
            return
        self._timed = wanted
        if self._late_since is not None and beat.moved != self._late_since:
            self._recovered()
        if beat.limit_s is None:
            self._timer.stop()
        else:
            self._timer.set(beat.limit_s - (time.monotonic() - beat.moved))

    def _recovered(self) -> None:
        """Take back what was said of a rank that was late and got on."""
        self._late_since = None
        self._collectives = {}
        self._published.unlink(missing_ok=True)

    @staticmethod
    def _is_late(beat: Beat) -> bool:
        return beat.limit_s is not None and time.monotonic() - beat.moved > beat.limit_s + _AFTER_S

    def _look_into_it(self) -> None:
        """Bring the stacks to the attempt's folder, then ask the flight recorder."""
        with contextlib.suppress(OSError):  # the node's monitor tries again
            self._mark.touch()
            publish(self._stack, self._published)
        from orchestrator.runtime import recorder

        self._collectives = recorder.dump(self._pulse.beat.rank)
