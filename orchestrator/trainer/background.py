"""Saves of the trainer's state that go on while it trains.

Once the optimizer has a state (after the first step) the ranks plan who writes what, get host
memory for a copy and start a process each that writes it. A save then copies the state into that
memory (`snapshot`); the thread of the save (`orchestrator.runtime.background`) has the process
write the files (`writing`), and publishes. The memory is used again by the next save.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.storage import WriteResult

from orchestrator.checkpoint import FileEntry
from orchestrator.errors import CheckpointError
from orchestrator.trainer.host_memory import HostMemory
from orchestrator.trainer.local_copy import LocalCopy
from orchestrator.trainer.memory_left import lack
from orchestrator.trainer.shards import Written
from orchestrator.trainer.snapshot import Copier, Snapshot, changes_in_forward
from orchestrator.trainer.state import AppState
from orchestrator.trainer.storage import Settled, finish, flatten, form_of, results, settle_plan
from orchestrator.trainer.writer import Writer

_STATE = "app"
# The writer imports torch, from a shared file system maybe.
_READY_S = 300.0
_CHANGED_BY_STEP = (f"{_STATE}.model.", f"{_STATE}.optim.")


class BackgroundSaver:
    """What a rank needs to save its state in the background. Making one is collective."""

    def __init__(
        self,
        state: AppState,
        *,
        writers: int,
        timeout_s: float,
        local: LocalCopy | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._local = local
        self._state = state
        # Of its own: its thread must meet neither votes nor other checkpoint traffic.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s + 60))
        nested = self._nested()
        self._settled = settle_plan(nested, self._group, files=writers)
        self._copier = Copier(self._settled, flatten(nested))
        self._writers = writers
        self._memory: HostMemory | None = None
        self._writer: Writer | None = None
        self._problem = ""
        self._snapshot: Snapshot | None = None
        self._hook = state.optimizer.register_step_pre_hook(lambda *_: self._hold_back())
        self._preparing = threading.Thread(target=self._prepare, name="fsdpq-memory", daemon=True)

    @property
    def nbytes(self) -> int:
        """Host memory that the copy of this rank takes."""
        return self._copier.layout.nbytes

    def lack(self) -> str:
        """Return why this node has no room for the copies of its ranks; empty if it has."""
        return lack(self.nbytes, ranks=int(os.environ.get("LOCAL_WORLD_SIZE") or 1))

    def prepare(self) -> None:
        """Begin to get memory and a writer, in a thread: it takes seconds."""
        self._preparing.start()

    def ready(self) -> str:
        """Wait until all is there; return why it is not to be had, empty if all is well."""
        self._preparing.join(2 * _READY_S)
        if self._preparing.is_alive():
            return f"host memory and writer were not ready within {2 * _READY_S:g} s"
        return self._problem

    def take(self) -> "StateJob":
        """Begin to copy the state; return what writes it. Collective, since the state is.

        Raises:
            ValueError: The state is of another form than it was.
        """
        assert self._writer is not None
        flat = flatten(self._nested())
        if form_of(flat) != self._settled.form:
            changed = sorted(set(form_of(flat).items()) ^ set(self._settled.form.items()), key=str)
            raise ValueError(f"the state has changed its form: {changed[0]}")
        at_once = changes_in_forward(self._state.model, _CHANGED_BY_STEP)
        self._snapshot = self._copier.take(flat, at_once=at_once)
        return StateJob(self._snapshot, self._settled, self._writer, self._group, self.timeout_s)

    def close(self) -> None:
        """End the writer and give the memory back. Only once the last save is settled."""
        self._hook.remove()
        if self._preparing.ident is not None:
            self._preparing.join(2 * _READY_S)
        if self._writer is not None:
            self._writer.close()
        self._snapshot = None
        self._copier.forget()
        if self._memory is not None:
            self._memory.close()

    def _nested(self) -> dict[str, Any]:
        return {_STATE: self._state.state_dict()}

    def _prepare(self) -> None:
        device = self._state.world.device
        try:
            memory = self._memory = HostMemory.make(self.nbytes)
            writer = self._writer = Writer(memory, threads=self._writers, local=self._local)
            if device.type == "cuda":
                torch.cuda.set_device(device)  # threads begin on the first one
                memory.pin(self._copier.layout.parts)
            self._copier.use(memory)
            writer.wait_until_ready(_READY_S)
        except (OSError, RuntimeError, ValueError, CheckpointError) as problem:
            self._problem = f"{type(problem).__name__}: {problem}"

    def _hold_back(self) -> None:
        if self._snapshot is not None:
            self._snapshot.hold_back(self.timeout_s)
            self._snapshot = None


@dataclass(frozen=True, slots=True)
class StateJob:
    """Writes a snapshot. A `Job` of the runtime's."""

    snapshot: Snapshot
    settled: Settled
    writer: Writer
    group: dist.ProcessGroup
    timeout_s: float

    def stage(self) -> None:
        """Return once the copy is whole."""
        self.snapshot.finish()

    def write(self, folder: Path) -> Mapping[str, FileEntry]:
        """Write this rank's files, and `.metadata` on rank 0. Collective.

        Raises:
            CheckpointError: It failed on some rank.
        """
        written: list[Written] = []

        def write() -> list[WriteResult]:
            files = self.snapshot.files
            written.extend(self.writer.write(folder, files, timeout_s=self.timeout_s))
            return results(self.settled.rows, written)

        finish(folder, self.settled, write, self.group)
        return {file.name: file.entry for file in written}

    def cancel(self) -> None:
        """End the writer: the files it writes are not wanted any more."""
        self.writer.end()
