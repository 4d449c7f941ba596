"""Removes copies that a newer one has made useless: one rank of a node, beside the training."""

import threading

from orchestrator.runtime import Run
from orchestrator.trainer.local_copy import LocalCopy

_PATIENCE_S = 10.0


class Keeper:
    """Removes what is outdated among the copies of this node.

    Only the node's first rank does anything. Giving gigabytes of memory back takes a while, so a
    thread does it.
    """

    def __init__(self, local: LocalCopy | None, run: Run) -> None:
        self._local = local if run.env.local_rank == 0 else None
        self._run = run
        self._seen: int | None = None
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """See whether a save has been published; call it after each step."""
        if self._local is None or (self._thread is not None and self._thread.is_alive()):
            return
        step = self._run.saved_step
        if step is None or step == self._seen:
            return
        self._seen = step
        self._thread = threading.Thread(
            target=self._local.thin_out,
            kwargs={"step": step, "attempt": self._run.env.attempt},
            name="fsdpq-copies",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Let it be done with the last save, unless that takes long."""
        for _ in range(2):  # what is under way, then what has been published since
            if self._thread is not None:
                self._thread.join(_PATIENCE_S)
            self.look()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def forget(self) -> None:
        """Remove all copies, where nobody will start this run again."""
        run = self._run.env.run
        if self._local is not None and (run.finished.exists() or run.cancelled.exists()):
            self._local.remove()
