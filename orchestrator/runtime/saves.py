"""The saves of one attempt: those that block, the one in the background, and what each has cost."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

from orchestrator.checkpoint import FileEntry
from orchestrator.errors import FsdpqError, RunError
from orchestrator.runtime import grace, past, savelog, saving
from orchestrator.runtime.alone import Agreement, Alone
from orchestrator.runtime.background import Background, Job, Spoilt, Upload, Wish
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import SupersededError
from orchestrator.runtime.notices import Notice
from orchestrator.runtime.pacing import Pacer


@dataclass(frozen=True, slots=True)
class _Heard:
    """The notice that all ranks stop for, and when it came (seconds since 1970)."""

    notice: Notice
    at: float


class Saves:
    """What an attempt has saved and is saving. Methods with ``ranks`` are collective."""

    def __init__(self, env: Environment) -> None:
        self.saved_step: int | None = None
        self.last: savelog.Save | None = None
        self._pacer: Pacer | None = None
        self._heard: _Heard | None = None
        self._env = env
        self._background: Background | None = None

    @property
    def lost(self) -> bool:
        """Whether this rank knows that the save in the background came to nothing."""
        return self._background is not None and self._background.failed

    @property
    def busy(self) -> bool:
        """Whether this rank still saves in the background."""
        return self._background is not None and self._background.busy

    def pace(self, step: int, *, mtbf_s: float, max_interval_s: float) -> None:
        """Let rank 0 say from now on when a save is due. See `Run.checkpoint_due`."""
        if self._pacer is None and self._env.rank == 0:
            self._pacer = Pacer(self._env, step=step, mtbf_s=mtbf_s, max_interval_s=max_interval_s)

    def due(self, step: int) -> bool:
        """Return whether ``step`` is to be saved, as far as this rank can tell."""
        return self._pacer is not None and self._pacer.due(step)

    def hear(self, notice: Notice) -> None:
        """Take note of the notice that all ranks stop for; the first one counts."""
        self._heard = self._heard or _Heard(notice, notice.at or time.time())

    # -- a save that blocks --------------------------------------------------------------------

    @contextlib.contextmanager
    def blocking(
        self, ranks: Agreement, wish: Wish, known: dict[str, FileEntry] | None
    ) -> Iterator[Path]:
        """Give a fresh directory, then publish it. See `Run.checkpoint`."""
        began, step = time.monotonic(), wish.step
        temporary = saving.begin(ranks, self._env, step=step)
        problem: BaseException | None = None
        try:
            yield temporary
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as raised:
            problem = raised
        error = f"{type(problem).__name__}: {problem}" if problem else ""
        try:
            saving.finish(
                ranks, self._env, step=step, temporary=temporary, error=error, known=known
            )
        except FsdpqError as refusal:
            raise refusal from problem
        self.saved_step = step
        if self._env.rank == 0:
            saving.thin_out(self._env, keep_last=wish.keep_last, keep_every=wish.keep_every)
            self._took(wish, time.monotonic() - began)

    def _took(self, wish: Wish, seconds: float) -> None:
        """Write down what a save has cost. Rank 0 only."""
        self.last = savelog.record_save(
            self._env, step=wish.step, seconds=seconds, reason=self._why(wish)
        )
        if self._pacer is not None:
            self._pacer.saved(wish.step, blocked_s=seconds)

    def _why(self, wish: Wish) -> str:
        return wish.reason or ("notice" if self._heard else "interval")

    # -- a save in the background --------------------------------------------------------------

    def prepare(self, timeout_s: float) -> Background:
        """Return what saves in the background; makes it at the first call. Collective."""
        if self._background is None:
            ranks = self._own_ranks(timeout_s)
            self._background = Background(ranks, self._env, timeout_s=timeout_s)
        return self._background

    def begin(
        self, ranks: Agreement, wish: Wish, take: Callable[[], Job], *, timeout_s: float
    ) -> None:
        """Let a thread save what ``take`` returns. Only once the save before is settled."""
        began = time.monotonic()
        behind = self.prepare(timeout_s)
        job = _take(take)
        # Nobody begins before all have their copy: a rank that dies in here leaves no thread that
        # waits for it.
        ranks.maximum([0], timeout_s=timeout_s)
        upload = behind.begin(job, wish)
        upload.blocked_s = time.monotonic() - began
        if self._pacer is not None:
            self._pacer.began(wish.step)

    def settle(self, ranks: Agreement) -> FsdpqError | None:
        """Wait for the save in the background; return what went wrong, the same on all ranks.

        Raises:
            SupersededError: A newer attempt has started.
        """
        behind = self._background
        if behind is None or (upload := behind.upload) is None:
            return None
        began = time.monotonic()
        within_s = None if self._heard is None else self._patience(self._heard, upload)
        problem = behind.settle(ranks, within_s=within_s)
        upload.blocked_s += time.monotonic() - began
        self._tell(upload, problem)
        if isinstance(problem, SupersededError):
            raise problem
        return problem

    @property
    def under_way(self) -> bool:
        """Whether there is a save that is not settled; the same on all ranks."""
        return self._background is not None and self._background.upload is not None

    def look(self) -> None:
        """Take note of a save in the background that has been published meanwhile."""
        upload = self._background.upload if self._background is not None else None
        if upload is not None and upload.done and upload.problem is None:
            self._tell(upload, None)

    def _own_ranks(self, timeout_s: float) -> Agreement:
        """Return ranks that the thread of a save may use while others vote."""
        if self._env.world_size == 1:
            return Alone()
        from orchestrator.runtime import collective

        if not collective.is_ready():
            raise RunError(
                "run.checkpoint_in_background(): several ranks need torch.distributed for it"
            )
        # A rank may come as late as its writer is allowed to, and then has to be heard.
        return collective.Ranks(timeout=timedelta(seconds=timeout_s + 60))

    def _tell(self, upload: Upload, problem: FsdpqError | None) -> None:
        """Write down, once, how a save in the background ended."""
        if upload.told:
            return
        upload.told = True
        step, took, blocked = upload.wish.step, upload.seconds, upload.blocked_s
        if problem is None:
            self.saved_step = step
        if self._env.rank != 0:
            return
        why = upload.wish.reason or "interval"
        if problem is not None:
            savelog.record_loss(
                self._env, step=step, seconds=took, blocked_s=blocked, reason=why, why=str(problem)
            )
            print(f"fsdpq: {problem}", file=sys.stderr, flush=True)
            return
        self.last = savelog.record_save(
            self._env, step=step, seconds=took, blocked_s=blocked, reason=why
        )
        if self._pacer is not None:
            self._pacer.ended(step, blocked_s=blocked, seconds=took)

    def _patience(self, heard: _Heard, upload: Upload) -> float:
        """Return for how many seconds the notice lets ``upload`` go on. Rank 0's word counts."""
        costs = past.saves(self._env.run)
        behind = [cost.seconds for cost in costs if not cost.blocking]
        ahead = [cost.seconds for cost in costs if cost.blocking]
        usual_s = median(behind) if behind else 2 * upload.elapsed_s
        return grace.patience_s(
            left_s=grace.left_s(
                notice_s=past.notice_s(self._env.run),
                since_s=max(0.0, time.time() - heard.at),
                urgent=heard.notice.urgent,
            ),
            rest_s=max(0.0, usual_s - upload.elapsed_s),
            save_s=median(ahead) if ahead else usual_s,
        )


def _take(take: Callable[[], Job]) -> Job:
    try:
        return take()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # told to the other ranks like any failure
        return Spoilt(problem)
