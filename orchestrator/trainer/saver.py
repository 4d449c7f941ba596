"""Saves and loads the whole state by way of the run. The place where an asynchronous save goes."""

import pickle
import time
from dataclasses import dataclass

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from orchestrator.checkpoint import Checkpoint
from orchestrator.runtime import Run
from orchestrator.spec.train import CheckpointSpec
from orchestrator.trainer.lenient import LenientPlanner
from orchestrator.trainer.metrics import Console
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
    console: Console

    def due(self) -> bool:
        """Return whether the present step is to be saved; the same on all ranks."""
        spec, step = self.spec, self.state.step
        if spec.every_steps != "auto":
            return step % spec.every_steps == 0
        due = self.run.checkpoint_due(step, mtbf_s=spec.mtbf_s, max_interval_s=spec.max_interval_s)
        # Those that are kept for good must exist.
        return due or (spec.keep_every is not None and step % spec.keep_every == 0)

    def save(self, *, reason: str = "") -> None:
        """Save and publish the present step, unless that was done. Collective; blocks.

        ``reason`` says why in the ledger.

        Raises:
            CheckpointError: It was not saved.
        """
        step = self.state.step
        if self.run.saved_step == step:
            return
        began = time.perf_counter()
        with self.run.checkpoint(
            step,
            keep_last=self.spec.keep_last,
            keep_every=self.spec.keep_every,
            reason=reason,
        ) as folder:
            save(
                {"app": self.state},
                # Several files a rank: one stream alone fills neither disk nor processors.
                storage_writer=FileSystemWriter(folder, thread_count=self.spec.writers),
                process_group=self.state.world.checkpoint_group,
            )
            written = time.perf_counter()
        done = time.perf_counter()
        self.console.say(
            f"step {step} saved in {done - began:.1f} s: {written - began:.1f} s to write,"
            f" {done - written:.1f} s to hash and publish"
        )

    def load(self, checkpoint: Checkpoint) -> None:
        """Load ``checkpoint``, or an older one where it does not load. Collective.

        Raises:
            CheckpointError: None of them loads.
        """
        began = time.perf_counter()
        while (problem := self._try(checkpoint)) is not None:
            self.console.say(f"step {checkpoint.step} does not load: {problem}")
            checkpoint = self.run.reject(checkpoint, reason=problem)
        took = time.perf_counter() - began
        self.console.say(f"step {checkpoint.step} loaded in {took:.1f} s")
        self.state.check_corpus()

    def _try(self, checkpoint: Checkpoint) -> str | None:
        problem = ""
        try:
            load(
                {"app": self.state},
                checkpoint_id=checkpoint.path,
                planner=LenientPlanner(),
                process_group=self.state.world.checkpoint_group,
            )
        except _LOAD_ERRORS as raised:
            problem = f"{type(raised).__name__}: {raised}"
        if self.run.agreed(not problem):
            return None
        return problem or "it did not load on another rank"
