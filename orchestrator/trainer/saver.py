"""Saves and loads the whole state by way of the run. The place where an asynchronous save goes."""

import pickle
from dataclasses import dataclass

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from orchestrator.checkpoint import Checkpoint
from orchestrator.runtime import Run
from orchestrator.spec.train import CheckpointSpec
from orchestrator.trainer.state import AppState

# A CheckpointException is a BaseException, and wraps what other ranks ran into; the rest is what
# loading raises on this rank when files or shapes are not as expected.
_LOAD_ERRORS = (
    CheckpointException,
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes checkpoints of ``state``, and reads them back."""

    run: Run
    state: AppState
    spec: CheckpointSpec

    def save(self) -> None:
        """Save and publish the present step, unless that was done. Collective; blocks.

        Raises:
            CheckpointError: It was not saved.
        """
        step = self.state.step
        if self.run.saved_step == step:
            return
        with self.run.checkpoint(
            step, keep_last=self.spec.keep_last, keep_every=self.spec.keep_every
        ) as folder:
            save(
                {"app": self.state},
                checkpoint_id=folder,
                process_group=self.state.world.checkpoint_group,
            )

    def load(self, checkpoint: Checkpoint) -> None:
        """Load ``checkpoint``, or an older one where it does not load. Collective.

        Raises:
            CheckpointError: None of them loads.
        """
        while (problem := self._try(checkpoint)) is not None:
            checkpoint = self.run.reject(checkpoint, reason=problem)
        self.state.check_corpus()

    def _try(self, checkpoint: Checkpoint) -> str | None:
        problem = ""
        try:
            load(
                {"app": self.state},
                checkpoint_id=checkpoint.path,
                process_group=self.state.world.checkpoint_group,
            )
        except _LOAD_ERRORS as raised:
            problem = f"{type(raised).__name__}: {raised}"
        if self.run.agreed(not problem):
            return None
        return problem or "it did not load on another rank"
