"""progress.json: how far rank 0 is, on the shared disk, for readers of a node without a monitor."""

import contextlib
import time

from orchestrator.checkpoint.durable import write_json
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.pulse import Pulse
from orchestrator.runtime.seldom import Seldom


class Progress:
    """Writes down how far this rank is, if it is rank 0."""

    def __init__(self, env: Environment, pulse: Pulse) -> None:
        self._env, self._pulse = env, pulse
        self._seldom = Seldom(env)
        self._stepped = False

    def stepped(self) -> bool:
        """Take note that a step was done; return whether to write it down now."""
        self._stepped = True
        return self._seldom.due()

    def write_phase(self, step: int) -> None:
        """Write what is done now; after how many steps only if one was done in this attempt."""
        if self._env.rank == 0:
            with contextlib.suppress(OSError):
                self.write(step if self._stepped else None)

    def write(self, step: int | None) -> None:
        """Write that ``step`` steps are done, and what is done now. On rank 0 alone."""
        beat = self._pulse.beat
        told = {} if step is None else {"step": step}
        content = {**told, "at": time.time(), "phase": beat.phase, "limit_s": beat.limit_s}
        write_json(self._env.files.progress, content, durable=False)
