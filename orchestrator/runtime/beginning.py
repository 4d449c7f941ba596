"""Where an attempt begins: the checkpoint that it goes on from, and those of no use to it."""

from dataclasses import replace

from orchestrator.checkpoint import Checkpoint
from orchestrator.runtime import resuming
from orchestrator.runtime.ahead import Ahead
from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.environment import Environment


class Beginning:
    """What has been found out of where to begin.

    Attributes:
        step: Completed steps at the beginning; None before that is known.
        look: How closely a checkpoint is looked at before it is chosen.
    """

    def __init__(self, env: Environment, ahead: Ahead) -> None:
        self.step: int | None = None
        self.look = resuming.Look()
        self._env, self._ahead = env, ahead
        self._quarantined: list[resuming.SetAside] = []
        self._rejected: list[tuple[Checkpoint, str]] = []

    def end_ahead(self, *, wanted: bool) -> None:
        """Wait for what is hashed ahead, or give it up where this rank verifies nothing."""
        if wanted and self.look.verify == "full":
            self._ahead.wait()
        else:
            self._ahead.give_up()

    def newest(self, ranks: Agreement) -> resuming.Choice:
        """Return what rank 0 takes of all checkpoints. Collective."""
        look = replace(self.look, hint=self._ahead.known)
        return self._note(resuming.choose(ranks, self._env, look))

    def older(self, ranks: Agreement, *, before: int) -> resuming.Choice:
        """Return what rank 0 takes of those older than step ``before``. Collective."""
        return self._note(resuming.choose(ranks, self._env, self.look, before=before))

    def _note(self, choice: resuming.Choice) -> resuming.Choice:
        self._quarantined += choice.quarantined
        return choice

    def at(self, chosen: Checkpoint | None) -> int:
        """Begin at ``chosen``, once this node sees it; return its step.

        Raises:
            CheckpointError: It does not show up.
        """
        if chosen is not None:
            resuming.wait_until_visible(chosen)
        self.step = chosen.step if chosen else 0
        return self.step

    def record(self, step: int | None, error: str = "") -> None:
        """Let others know where this attempt begins, or why it cannot. Rank 0 writes."""
        if self._env.rank == 0:
            resuming.write_resume(self._env, step=step, quarantined=self._quarantined, error=error)

    def reject(self, checkpoint: Checkpoint, reason: str) -> None:
        """Note that ``checkpoint`` did not load."""
        self._rejected.append((checkpoint, reason))

    def quarantine_rejected(self) -> None:
        """Quarantine, on rank 0, what did not load: an older one did.

        Raises:
            SupersededError: A newer attempt has started.
            CheckpointError: One could not be renamed.
        """
        if self._env.rank == 0 and self._rejected:
            for checkpoint, reason in self._rejected:
                self._quarantined.append(resuming.set_aside(self._env, checkpoint, reason))
            self.record(self.step)
        self._rejected = []

    def refusal(self) -> str:
        """Return why there is nothing to begin at, and what to do."""
        bad = [f"step {item.step}: {item.reason}" for item in self._quarantined]
        bad += [f"step {found.step}: {reason}" for found, reason in self._rejected]
        found = "; ".join(bad) or "there are none"
        advice = (
            f"no usable checkpoint in {self._env.checkpoints} ({found}). The run does not start"
            " again at step 0 by itself. Bring a good checkpoint back under its name step-N, or,"
            " to start anew, submit under another name"
        )
        if not self._rejected:
            return advice
        return (
            f"{advice}. The checkpoints are whole but do not load: has the model's configuration,"
            " or the version of torch, changed?"
        )
