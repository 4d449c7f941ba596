"""Saves and loads the whole state by way of the run, while training waits or in the background."""

import pickle
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from orchestrator.checkpoint import Checkpoint, Fault, FileEntry, insist, on_this_node
from orchestrator.runtime import Run
from orchestrator.runtime.deadline import deadline
from orchestrator.runtime.savelog import Save
from orchestrator.spec.train import CheckpointSpec
from orchestrator.trainer.background import BackgroundSaver
from orchestrator.trainer.keeping import Keeper
from orchestrator.trainer.lenient import LenientPlanner
from orchestrator.trainer.local_copy import LocalCopy
from orchestrator.trainer.local_reader import Copies, CopyReader
from orchestrator.trainer.metrics import Console
from orchestrator.trainer.state import AppState
from orchestrator.trainer.storage import ShardWriter

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


@dataclass(slots=True)
class Saver:
    """Writes checkpoints of ``state``, and reads them back.

    Attributes:
        timeout_s: For how long ranks wait for one another, and for a writer.
        local: Where each node keeps copies of its own, if it does.
        behind: Saves in the background; None where training waits for each save.
    """

    run: Run
    state: AppState
    spec: CheckpointSpec
    console: Console
    timeout_s: float = 3600.0
    local: LocalCopy | None = None
    behind: BackgroundSaver | None = None
    _late: bool = False
    _told: Save | None = None
    _keeper: Keeper | None = None

    def prepare(self) -> None:
        """Get ready to save in the background, if that is wanted. Collective; after a step.

        Before its first step an optimizer has no state that could be planned for.
        """
        wanted = self.spec.mode == "async" or (
            self.spec.mode == "auto" and self.state.world.device.type == "cuda"
        )
        if not wanted or self.behind is not None:
            return
        self.behind = BackgroundSaver(
            self.state, writers=self.spec.writers, timeout_s=self.timeout_s, local=self.local
        )
        if self._all_well(self.behind.lack()):
            self.run.prepare_background(timeout_s=self.timeout_s)
            self.behind.prepare()

    def close(self) -> None:
        """Wait for the last save, then give back what saves in the background took. Collective."""
        self.run.settle()
        if self.behind is not None:
            self.behind.close()
        self.behind = None
        self._keep().close()

    def forget_copies(self) -> None:
        """Remove the nodes' own copies if the run is over. After the last word on that."""
        self._keep().forget()

    def _keep(self) -> Keeper:
        self._keeper = self._keeper or Keeper(self.local, self.run)
        return self._keeper

    def due(self) -> bool:
        """Return whether the present step is to be saved; the same on all ranks.

        While a save is under way none is: what comes due is made up for after the first step
        that finds it published. So training never waits for a disk that is too slow, and goes on
        to hear notices.
        """
        self._keep().look()
        spec, step = self.spec, self.state.step
        # Those that are kept for good must exist.
        if spec.keep_every is not None and step % spec.keep_every == 0 and self._comes_due(step):
            return True
        self._late = self._comes_due(step) or self._late
        if not self._late or self.run.saving:
            return False
        self._late = False
        return True

    def _comes_due(self, step: int) -> bool:
        spec = self.spec
        if spec.every_steps != "auto":
            return step % spec.every_steps == 0
        due = self.run.checkpoint_due(step, mtbf_s=spec.mtbf_s, max_interval_s=spec.max_interval_s)
        return due or (spec.keep_every is not None and step % spec.keep_every == 0)

    def news(self) -> dict[str, object]:
        """Return what the newest save has cost, once; for the metrics of rank 0."""
        save = self.run.last_save
        if save is None or save is self._told:
            return {}
        self._told = save
        told = ("step", "bytes", "seconds", "blocked_s")
        return {"save": {name: getattr(save, name) for name in told}}

    def save_soon(self, *, reason: str = "interval") -> None:
        """Save the present step in the background where that is possible, else now. Collective.

        Where the save before is still under way, training waits for that.

        Raises:
            CheckpointError: The save before came to nothing, or this one did.
        """
        behind = self.behind
        if behind is None or not self._all_well(behind.ready()):
            self.save(reason=reason)
            return
        self.run.checkpoint_in_background(
            self.state.step,
            behind.take,
            keep_last=self.spec.keep_last,
            keep_every=self.spec.keep_every,
            reason=reason,
            timeout_s=self.timeout_s,
        )

    def save(self, *, reason: str = "") -> None:
        """Save and publish the present step, unless that was done. Collective; blocks.

        A save in the background is waited for, unless a notice leaves no time for that.
        ``reason`` says why in the ledger.

        Raises:
            CheckpointError: It was not saved.
        """
        step, began = self.state.step, time.perf_counter()
        self.run.settle(must=False)  # what is saved here is newer
        waited = time.perf_counter()
        if self.run.saved_step == step:
            return
        known: dict[str, FileEntry] = {}
        with self.run.checkpoint(
            step,
            keep_last=self.spec.keep_last,
            keep_every=self.spec.keep_every,
            reason=reason,
            known=known,
        ) as folder:
            # Several files a rank: one stream alone fills neither disk nor processors.
            writer = ShardWriter(folder, files=self.spec.writers, local=self.local)
            save(
                {"app": self.state},
                storage_writer=writer,
                process_group=self.state.world.checkpoint_group,
            )
            known.update(writer.known)
            written = time.perf_counter()
        done = time.perf_counter()
        self.console.say(
            f"step {step} saved in {done - waited:.1f} s: {written - waited:.1f} s to write and"
            f" hash, {done - written:.1f} s to publish"
            + (f"; {waited - began:.1f} s after the one before" if waited - began > 1 else "")
        )

    def load(self, checkpoint: Checkpoint) -> None:
        """Load ``checkpoint``, or an older one where it does not load. Collective.

        A rank that has not loaded within the time-out ends: what hangs is most likely a read.

        Raises:
            CheckpointError: None of them loads.
            SpecError: It is of another kind of training, or of another text.
        """
        began = time.perf_counter()
        with deadline(self.run, "loading a checkpoint", seconds=self.timeout_s):
            copies = Copies(self.local, checkpoint, self.run.known_hash)
            while (fault := self._try(copies)) is not None:
                self.console.say(f"step {checkpoint.step} does not load: {fault}")
                insist(checkpoint.path, fault)
                checkpoint = self.run.reject(checkpoint, reason=fault.reason)
                copies = Copies(self.local, checkpoint, self.run.known_hash)
        took = time.perf_counter() - began
        self.console.say(f"step {checkpoint.step} loaded in {took:.1f} s")
        self.state.check_corpus()

    def _all_well(self, problem: str) -> bool:
        """Return whether no rank has a problem; give up saving in the background if one has."""
        if self.run.agreed(not problem, timeout_s=self.timeout_s + 60):
            return True
        self.console.say(
            f"saves hold the training up: {problem or 'another rank cannot save in the background'}"
        )
        if self.behind is not None:
            self.behind.close()
        self.behind = None
        return False

    def _check_identity(self, copies: Copies) -> None:
        reader = CopyReader(copies)
        self.state.check_identity(
            copies.checkpoint.path, lambda _: reader, unread=lambda: self._unread(reader)
        )

    def _try(self, copies: Copies) -> Fault | None:
        """Return why the state does not load, from copies or else without them; None if it does."""
        self._check_identity(copies)  # what another kind of training has saved is not damaged
        fault = self._read(copies)
        if fault is not None and self.local is not None:
            self.console.say(f"step {copies.checkpoint.step} is read without copies: {fault}")
            fault = self._read(Copies(None, copies.checkpoint))
        return fault

    def _read(self, copies: Copies) -> Fault | None:
        problem, reader = "", CopyReader(copies)
        try:
            load(
                {"app": self.state},
                storage_reader=reader,
                planner=LenientPlanner(),
                process_group=self.state.world.checkpoint_group,
            )
        except _LOAD_ERRORS as raised:
            problem = f"{type(raised).__name__}: {raised}"
        finally:
            copies.close()
        if not self.run.agreed(not problem):
            return self._fault(reader, problem or "it did not load on another rank")
        if copies.local is not None:
            self._say_where(reader)
        return None

    def _fault(self, reader: CopyReader, problem: str) -> Fault:
        """Return why a checkpoint did not load; on all ranks that it is unread, or on none."""
        found: list[str] = [""] * self.state.world.size
        dist.all_gather_object(found, self._unread(reader), group=self.state.world.checkpoint_group)
        unread = next((why for why in found if why), "")
        return Fault(unread or problem, unread=bool(unread))

    def _unread(self, reader: CopyReader) -> str:
        """Return what ``reader`` could not read though it may be sound, in words, or nothing."""
        fault = reader.fault
        if fault is None or not fault.unread:
            return ""
        return on_this_node(fault.reason, self.state.world.rank)

    def _say_where(self, reader: CopyReader) -> None:
        """Say how much all ranks together have read from where. Collective."""
        read = torch.tensor([reader.from_copy, reader.from_checkpoint])
        dist.all_reduce(read, group=self.state.world.checkpoint_group)
        local, shared = (n / 2**30 for n in read.tolist())
        self.console.say(
            f"read {local:.3f} GiB from local copies, {shared:.3f} GiB from the checkpoint itself"
        )
