"""Everything that a checkpoint holds, saved and loaded as one: no part can be a step behind."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from orchestrator.checkpoint import Fault, insist
from orchestrator.errors import SpecError
from orchestrator.trainer.identity import WHOLE, check_identity, saved_identity
from orchestrator.trainer.randomness import gather_states, restore_states
from orchestrator.trainer.world import World


@dataclass(slots=True)
class AppState:
    """The state of a training run. A `Stateful` of DCP's.

    Attributes:
        step: Completed optimizer steps.
        position: Samples used so far by all ranks together, over all epochs.
        fingerprint: Of the corpus that `position` counts in.
        seed: The run's.
        skipped: How many of the steps changed nothing, since loss or gradient was not finite.
        skipped_in_a_row: How many of the last ones.
        eval_owed: A notice cut the evaluation of this step short; the next attempt makes up for it.
        changes: Says which file of the corpus has changed, if that is known.
        identity: What trains, see `identity`.
        without: Names of what is not saved: frozen weights that are read from where they came.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    world: World
    seed: int
    fingerprint: str
    identity: str = WHOLE
    without: frozenset[str] = frozenset()
    step: int = 0
    position: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    eval_owed: bool = False
    loaded_fingerprint: str = ""
    changes: Callable[[], str] = str

    def state_dict(self) -> dict[str, Any]:
        """Return what to save. Collective."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": {key: value for key, value in model.items() if key not in self.without},
            "optim": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "rng": gather_states(self.world),
            "data": {"position": self.position, "fingerprint": self.fingerprint},
            "step": self.step,
            "trains": self.identity,
            "skipped": {"all": self.skipped, "in_a_row": self.skipped_in_a_row},
            "eval": {"owed": self.eval_owed},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was loaded. Collective."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
            # DCP has loaded all that `state_dict` names, so only what is left out is missing.
            options=StateDictOptions(strict=not self.without),
        )
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]
        self.skipped = state["skipped"]["all"]
        self.skipped_in_a_row = state["skipped"]["in_a_row"]
        self.eval_owed = state["eval"]["owed"]
        self.position = state["data"]["position"]
        restore_states(state["rng"], self.world, seed=self.seed, step=self.step)
        self.loaded_fingerprint = state["data"]["fingerprint"]

    def count_skipped(self, *, skipped: bool) -> None:
        """Count a step that changed nothing, or note one that did."""
        self.skipped += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0

    def check_identity(
        self,
        folder: Path,
        reader: Callable[[Path], FileSystemReader] = FileSystemReader,
        unread: Callable[[], str] = str,
    ) -> None:
        """Refuse a checkpoint that was saved by another kind of training. Collective.

        Args:
            folder: Of the checkpoint.
            reader: Makes what reads it.
            unread: Says afterwards what could not be read though it may be sound.

        Raises:
            SpecError: It was; on all ranks.
            CheckpointError: It may be sound, and could not be read; on all ranks.
        """
        found = ["", ""]
        if self.world.rank == 0:
            found = [saved_identity(folder, reader), unread()]
        dist.broadcast_object_list(found, src=0, group=self.world.checkpoint_group)
        saved, missing = found
        if missing:
            insist(folder, Fault(missing, unread=True))
        if saved:
            check_identity(saved, self.identity)

    def check_corpus(self) -> None:
        """Refuse to go on in another text than the position counts in.

        Raises:
            SpecError: The files have changed since the checkpoint was saved.
        """
        loaded = self.loaded_fingerprint
        # Older versions knew only the lengths, which come first.
        now = self.fingerprint if ":" in loaded else self.fingerprint.partition(":")[0]
        if loaded not in ("", now):
            what = self.changes() or "the sources, their weights or seq_len changed"
            raise SpecError(
                f"data: {what} after step {self.step}; samples would be repeated or left out."
                " Bring the old ones back, or start a new run from this model"
            )
