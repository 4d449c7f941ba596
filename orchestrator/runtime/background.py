"""A save that goes on while training does: in a thread of its own, over a group of its own.

The thread does what a save that blocks does (`saving`): a fresh directory, each rank's files, the
manifest, the rename. What is written is a copy that the training no longer touches, so nothing can
be torn. There is never more than one at a time. All ranks begin it together, and all of them
`settle` it together before the next one; in between a rank's own view of it may be ahead.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.checkpoint import FileEntry
from orchestrator.errors import CheckpointError, FsdpqError
from orchestrator.runtime import saving
from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import SupersededError, check_fence

# After a writer was ended: for the thread to hear of it and to tell the other ranks.
_ABANDONED_S = 30.0


class Job(Protocol):
    """What a rank has to write. Called in the thread of the save, but for `cancel`."""

    def stage(self) -> None:
        """Return once training may change what is saved."""

    def write(self, folder: Path) -> Mapping[str, FileEntry]:
        """Write this rank's files into ``folder``; describe those that are durable already."""

    def cancel(self) -> None:
        """Let `write` raise soon. Called by the main thread."""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """The job of a rank that could not copy its state: the other ranks are told why."""

    problem: BaseException

    def stage(self) -> None:
        """Raise the problem."""
        raise self.problem

    def write(self, folder: Path) -> Mapping[str, FileEntry]:
        """Raise the problem."""
        raise self.problem

    def cancel(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be saved, and which older ones stay. See `Run.checkpoint`."""

    step: int
    keep_last: int
    keep_every: int | None
    reason: str


class Upload:
    """One save in the background, from its start to its end."""

    def __init__(self, ranks: Agreement, env: Environment, job: Job, wish: Wish) -> None:
        self.wish = wish
        self.problem: FsdpqError | None = None
        self.seconds = 0.0
        self.blocked_s = 0.0
        self.told = False  # whether it has been written down
        self._ranks, self._env, self._job = ranks, env, job
        self._abandoned = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="fsdpq-save", daemon=True)

    def start(self) -> None:
        """Begin. What this thread blocks of signals, the new one does too."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    @property
    def elapsed_s(self) -> float:
        """For how long it has been going on."""
        return time.monotonic() - self._began

    def wait(self, timeout_s: float) -> None:
        """Return once it has ended, or after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Let it come to nothing, unless it is being published at this moment."""
        self._abandoned = True
        self._job.cancel()

    def _run(self) -> None:
        try:
            self._save()
        except FsdpqError as problem:
            self.problem = problem
        except BaseException as problem:  # a thread that dies without a word would be waited for
            self.problem = CheckpointError(f"step {self.wish.step} could not be saved: {problem!r}")
        self.seconds = time.monotonic() - self._began

    def _save(self) -> None:
        step, error = self.wish.step, _problem_of(self._job.stage)
        temporary = saving.begin(self._ranks, self._env, step=step)
        known: Mapping[str, FileEntry] = {}
        if not error:
            try:
                known = self._job.write(temporary)
            except BaseException as raised:  # DCP's CheckpointException is one
                error = _words(raised)
        saving.finish(
            self._ranks,
            self._env,
            step=step,
            temporary=temporary,
            error=error,
            known=known,
            allowed=self._check,
        )
        if self._ranks.rank == 0:
            saving.thin_out(
                self._env, keep_last=self.wish.keep_last, keep_every=self.wish.keep_every
            )

    def _check(self) -> None:
        check_fence(self._env)
        if self._abandoned:
            raise CheckpointError("it was abandoned")


class Background:
    """The save that goes on in the background, if any. For the main thread."""

    def __init__(self, ranks: Agreement, env: Environment, *, timeout_s: float) -> None:
        self.upload: Upload | None = None
        self._ranks, self._env = ranks, env
        # The thread may wait for the slowest writer, and after that for the other ranks.
        self._patience_s = 2 * timeout_s + 60

    def begin(self, job: Job, wish: Wish) -> Upload:
        """Start to save ``wish``. Collective, and only once the one before is settled."""
        assert self.upload is None
        self.upload = Upload(self._ranks, self._env, job, wish)
        self.upload.start()
        return self.upload

    @property
    def failed(self) -> bool:
        """Whether this rank knows that it came to nothing."""
        return self.upload is not None and self.upload.done and self.upload.problem is not None

    @property
    def busy(self) -> bool:
        """Whether this rank still works on it."""
        return self.upload is not None and not self.upload.done

    def settle(self, votes: Agreement, *, within_s: float | None = None) -> FsdpqError | None:
        """Wait for the end of the save; return what went wrong, on all ranks alike. Collective.

        Args:
            votes: For the main thread; not the ranks of the save.
            within_s: Abandon it after so many seconds. Rank 0's word counts. None waits until
                each part of it must have timed out.
        """
        upload = self.upload
        if upload is None:
            return None
        limit_s = votes.broadcast(within_s)
        upload.wait(self._patience_s if limit_s is None else limit_s)
        (late,) = votes.maximum([int(not upload.done)], timeout_s=self._patience_s)
        if late:
            upload.abandon()
            upload.wait(_ABANDONED_S)
        (worst,) = votes.maximum([_verdict(upload)], timeout_s=self._patience_s)
        self.upload = None
        return _worst(upload, worst)


_FINE, _FAILED, _SUPERSEDED = range(3)


def _verdict(upload: Upload) -> int:
    if isinstance(upload.problem, SupersededError):
        return _SUPERSEDED
    return _FINE if upload.done and upload.problem is None else _FAILED


def _worst(upload: Upload, verdict: int) -> FsdpqError | None:
    if verdict == _FINE:
        return None
    own = upload.problem
    if verdict == _SUPERSEDED:
        return own if isinstance(own, SupersededError) else SupersededError("a newer one started")
    step = upload.wish.step
    if own is None:
        where = "on another rank" if upload.done else "in time"
        return CheckpointError(f"step {step} could not be saved {where}")
    return own


def _problem_of(stage: Callable[[], None]) -> str:
    try:
        stage()
    except BaseException as raised:  # told to the others, who are waiting for this rank
        return _words(raised)
    return ""


def _words(raised: BaseException) -> str:
    text = str(raised)
    return text if isinstance(raised, FsdpqError) else f"{type(raised).__name__}: {text}"
