"""The ranks of a run, as soon as they can agree: a script may attach long before they can."""

import sys

from orchestrator.errors import RunError
from orchestrator.runtime.alone import Agreement, Alone
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.meeting import Meeting
from orchestrator.runtime.pulse import Pulse


class Quorum:
    """How this rank agrees with the others: as the script says, or by torch.distributed."""

    def __init__(self, env: Environment, ranks: Agreement | None, pulse: Pulse) -> None:
        self._env, self._pulse = env, pulse
        given = Alone() if env.world_size == 1 else ranks
        self._ranks: Agreement | None = Meeting(given, pulse) if given else None

    def met(self) -> Agreement | None:
        """Return the ranks; None while torch.distributed is not initialised."""
        if self._ranks is None and "torch" in sys.modules:
            from orchestrator.runtime import collective

            if collective.is_ready():
                self._ranks = Meeting(collective.Ranks(), self._pulse)
        return self._ranks

    def need(self, what: str) -> Agreement:
        """Return the ranks, for the method ``what`` of a run.

        Raises:
            RunError: They cannot agree yet.
        """
        ranks = self.met()
        if ranks is None:
            raise RunError(
                f"run.{what}() needs all {self._env.world_size} ranks to agree: call"
                " torch.distributed.init_process_group() first"
            )
        return ranks
