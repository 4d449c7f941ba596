"""The run as a training script sees it: where to resume, when to stop, what has been saved."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, NoReturn

from orchestrator.checkpoint import Checkpoint, FileEntry, newest_complete
from orchestrator.checkpoint.durable import write_json
from orchestrator.checkpoint.interval import MAX_INTERVAL_S, MTBF_S
from orchestrator.errors import CheckpointError, RunError
from orchestrator.rundir.beat import RESUMING, SAVING
from orchestrator.rundir.limits import Limits
from orchestrator.runtime import resuming
from orchestrator.runtime.ahead import Ahead, Copies, no_copies
from orchestrator.runtime.alone import Agreement, Alone
from orchestrator.runtime.background import Job, Wish
from orchestrator.runtime.environment import Environment, read_environment
from orchestrator.runtime.fence import check_fence
from orchestrator.runtime.logbook import Logbook
from orchestrator.runtime.meeting import Meeting
from orchestrator.runtime.notices import Notice, NoticeBoard, end_with_parent
from orchestrator.runtime.pacing import Pacer
from orchestrator.runtime.pulse import Pulse
from orchestrator.runtime.reports import Outcome, status, write_status
from orchestrator.runtime.savelog import Save
from orchestrator.runtime.saves import Heard, Saves
from orchestrator.runtime.stepclock import StepClock
from orchestrator.runtime.votes import decode, encode

_HEARTBEAT_S = 1.0
_RESUME_WAIT_S = 3600.0

_attached: "Run | None" = None


def attach(*, ranks: Agreement | None = None) -> "Run":
    """Return the run that this process is a worker of.

    Call it first thing, before torch is imported and before threads are started: it blocks the
    notice signals, and only what starts later inherits that. Children inherit it too, SIGTERM
    included, so end one of your own with kill() rather than terminate(). Under torchrun the worker
    also ends with its torchrun. A second call returns the same run.

    Args:
        ranks: How several ranks agree in a script without torch.distributed.

    Raises:
        RunError: The environment makes no sense, or this is not the main thread.
    """
    global _attached
    if _attached is None:
        _attached = _attach(ranks)
    return _attached


def _attach(ranks: Agreement | None) -> "Run":
    env = read_environment(os.environ)
    board = NoticeBoard(
        signals=env.notice_signals, file=env.notice_file, under_torchrun=env.under_torchrun
    )
    board.watch()
    if env.under_torchrun:
        end_with_parent()
    local_dir = os.environ.get("FSDPQ_LOCAL_DIR")
    pulse = Pulse(
        env,
        limits=Limits.from_text(os.environ.get("FSDPQ_HANG", "")),
        local_dir=Path(local_dir) if local_dir else None,
    )
    pulse.start()
    return Run(env, board, ranks=ranks, pulse=pulse)


class Run:
    """One worker's view of its run. Methods marked "collective" must be called by all ranks.

    Attributes:
        env: Its place.
        step: Completed steps, as this rank last said.
        own_s: For how long each rank was busy by itself with the step before the last vote, as it
            said there; empty if they did not say.
    """

    def __init__(
        self,
        env: Environment,
        board: NoticeBoard,
        *,
        ranks: Agreement | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self.env = env
        self.step = 0
        self.own_s: tuple[float, ...] = ()
        self._board = board
        self._pulse = pulse or Pulse(env)
        alone = Alone() if env.world_size == 1 else ranks
        self._ranks: Agreement | None = Meeting(alone, self._pulse) if alone else None
        self._first_step: int | None = None
        self._saves = Saves(env)
        self._logbook, self._clock = Logbook(env), StepClock()
        self._ahead, self._look = Ahead(), resuming.Look()
        self._quarantined: list[resuming.SetAside] = []
        self._rejected: list[tuple[Checkpoint, str]] = []
        self._beat_at = self._marks_at = float("-inf")
        self._paced = self._due = self._saving = False
        self._stepped = False

    @property
    def already_finished(self) -> bool:
        """Whether an earlier attempt did the last step."""
        return self.env.run.finished.exists()

    @property
    def saved_step(self) -> int | None:
        """The newest checkpoint that this attempt resumed from or published; None without one.

        One that is written in the background counts once this rank knows that it is published.
        """
        self._saves.look()
        return self._saves.saved_step

    @property
    def saving(self) -> bool:
        """Whether a save in the background is under way: as agreed by the last `should_stop`."""
        return self._saving

    @property
    def last_save(self) -> Save | None:
        """What the newest save of this attempt has cost. Rank 0 only, None elsewhere."""
        self._saves.look()
        return self._saves.last

    # -- resuming ------------------------------------------------------------------------------

    def verify_ahead(self, copies: Copies = no_copies) -> None:
        """Begin to verify, in a process of its own, what `resume` will most likely choose.

        Call it before the imports of torch and the like, so that both take place at once.
        ``copies`` says which files this node has elsewhere; whoever loads those asks `digest_of`.
        """
        self._ahead.begin(self.env, copies)

    def digest_of(self, file: IO[bytes]) -> str:
        """Return the SHA-256 of an open file in hexadecimal digits, hashed ahead or now.

        Raises:
            OSError: It cannot be read.
        """
        return self._ahead.digest_of(file)

    def resume(
        self,
        *,
        verify: resuming.Verify = "full",
        required: bool = False,
        held: resuming.Held | None = None,
    ) -> Checkpoint | None:
        """Return the checkpoint to start from, None for a start at step 0. Collective.

        Rank 0 takes the newest one that verifies and quarantines those that do not. Before
        torch.distributed is initialised, the other ranks wait for its decision on disk.

        Args:
            verify: "full" compares hashes too, "size" only lengths.
            required: There must be one. It is so anyway where the run has ever saved.
            held: Says which files this rank has copies of elsewhere; on all ranks or on none. What
                a rank has is left `unverified` here: whoever loads it compares the hashes.

        Raises:
            CheckpointError: There should be a usable checkpoint, and there is none.
        """
        self._look = resuming.Look(verify, held)
        ranks = self._agreement()
        with self.busy(RESUMING):
            if verify == "full":
                self._ahead.wait()
            else:
                self._ahead.give_up()
            if ranks is None and self.env.rank != 0:
                with self._pulse.waiting():
                    chosen = resuming.wait_for_resume(self.env, timeout_s=_RESUME_WAIT_S)
            else:
                look = replace(self._look, digest=self._ahead.digest)
                choice = resuming.choose(ranks or Alone(), self.env, look)
                chosen = self._settle(choice, required=required)
            return self._start_from(chosen)

    def reject(self, checkpoint: Checkpoint, *, reason: str) -> Checkpoint:
        """Return the next older checkpoint, as ``checkpoint`` did not load. Collective.

        The rejected one is quarantined by the first heartbeat or save, which show that an older
        one did load. If none loads, the fault is most likely not theirs (another model, another
        torch), and all of them stay.

        Raises:
            CheckpointError: There is no older one.
        """
        self._rejected.append((checkpoint, reason))
        ranks = self._need_ranks("reject")
        with self.busy(RESUMING):
            choice = resuming.choose(ranks, self.env, self._look, before=checkpoint.step)
            chosen = self._settle(choice, required=True)
        self._start_from(chosen)
        assert chosen is not None  # _settle raises without one
        return chosen

    def _settle(self, choice: resuming.Choice, *, required: bool) -> Checkpoint | None:
        self._quarantined += choice.quarantined
        chosen = choice.checkpoint
        refused = chosen is None and (required or choice.history)
        if refused:
            self._refuse()
        if self.env.rank == 0:
            self._record(chosen)
        return chosen

    def _refuse(self) -> NoReturn:
        """Say that there is no usable checkpoint, then fail on all ranks.

        In this order: the first rank that ends takes the others with it, and the word that keeps
        a watcher from trying again must be on disk by then.
        """
        error = self._advice()
        self._first_step = 0
        self._report("no_checkpoint", step=0, saved=None, reason=error)
        if self.env.rank == 0:
            self._record(None, error)
        if (ranks := self._agreement()) is not None:
            ranks.maximum([0], timeout_s=_RESUME_WAIT_S)
        raise CheckpointError(error)

    def _record(self, chosen: Checkpoint | None, error: str = "") -> None:
        step = chosen.step if chosen else None
        resuming.write_resume(self.env, step=step, quarantined=self._quarantined, error=error)

    def _start_from(self, chosen: Checkpoint | None) -> Checkpoint | None:
        if chosen is not None:
            resuming.wait_until_visible(chosen)
        self.step = self._first_step = chosen.step if chosen else 0
        self._saves.saved_step = chosen.step if chosen else None
        self._clock.restart()
        return chosen

    def _advice(self) -> str:
        bad = [f"step {item.step}: {item.reason}" for item in self._quarantined]
        bad += [f"step {found.step}: {reason}" for found, reason in self._rejected]
        found = "; ".join(bad) or "there are none"
        return (
            f"no usable checkpoint in {self.env.checkpoints} ({found}). The run does not start"
            " again at step 0 by itself. Bring a good checkpoint back under its name step-N, or,"
            " to start anew, submit under another name"
            + (
                ". The checkpoints are whole but do not load: has the model's configuration, or"
                " the version of torch, changed?"
                if self._rejected
                else ""
            )
        )

    # -- while training ------------------------------------------------------------------------

    def heartbeat(self, step: int) -> None:
        """Say that ``step`` steps are done. Rank 0 writes it down, at most once a second.

        Raises:
            SupersededError: A newer attempt has started; only rank 0 looks.
        """
        self.step = step
        self._pulse.step(step)
        self._stepped = True
        now = time.monotonic()
        if self.env.rank != 0 or now - self._beat_at < _HEARTBEAT_S:
            return
        self._beat_at = now
        check_fence(self.env)
        self._quarantine_rejected()
        self._write_progress(step)

    @contextlib.contextmanager
    def busy(self, what: str, *, limit_s: float | None = None) -> Iterator[None]:
        """Say that the block does something else than steps, so that it is not taken for a hang.

        Saves and resumes by way of the run say so by themselves; an evaluation of many minutes, or
        the loading of weights, does not. Each rank may say it for itself.

        Args:
            what: A word for it, such as "evaluating".
            limit_s: After how many seconds it hangs; `hang.save_s` of the job, if left out, or
                more where blocks like this took long before.
        """
        self._clock.halt()
        with self._pulse.phase(what, limit_s):
            self._tell_phase()
            yield
        self._tell_phase()
        self._clock.go()

    def _tell_phase(self) -> None:
        """Say on the shared disk what rank 0 is at, for readers of a node without a monitor."""
        if self.env.rank == 0:
            with contextlib.suppress(OSError):
                self._write_progress(self.step if self._stepped else None)

    def log(self, step: int, **values: object) -> None:
        """Write a line of metrics for ``step``: `loss=...`, `tokens_per_s=...`, what you like.

        Rank 0 writes, all ranks may call it. `fsdpq status` shows loss and tokens_per_s, and counts
        where the time went from `step_s`: the seconds of training since the last line, unless you
        give it. Lines of steps that an attempt lost stay; the later attempt's are the true ones.

        Raises:
            TypeError: A value is nothing that JSON knows.
        """
        step_s = self._clock.take()
        if self.env.rank == 0:
            self._logbook.write(step=step, step_s=step_s, values=values)

    def noticed(self) -> Notice | None:
        """Return this rank's own notice; the other ranks may not have one.

        To rank 0 the cancel mark is one too, for a signal may come too early to be heard.
        """
        return self._board.look() or self._cancelled()

    def _cancelled(self) -> Notice | None:
        now = time.monotonic()
        if self.env.rank != 0 or now - self._marks_at < _HEARTBEAT_S:
            return None
        self._marks_at = now
        return Notice("CANCEL", time.time(), "mark") if self.env.run.cancelled.exists() else None

    def should_stop(
        self,
        *,
        timeout_s: float = 600.0,
        term_timeout_s: float = 10.0,
        own_s: float | None = None,
    ) -> Notice | None:
        """Return the notice for which all ranks stop after this step, or None. Collective.

        The same vote carries whether rank 0 finds that a checkpoint is due, and whether a save in
        the background failed: then all ranks raise here, unless there is a notice to answer.

        Args:
            timeout_s: How long to wait for the other ranks. Longer than `hang.min_s`, so that by
                then the stacks of a rank that does not come have been written.
            term_timeout_s: The same after a SIGTERM, when there is little time left to save.
            own_s: How long this rank was busy with the step by itself; on all ranks or on none.
                The vote carries it, and afterwards `own_s` has that of every rank.

        Raises:
            VoteError: The ranks did not come together in time.
            CheckpointError: The save in the background came to nothing.
            SupersededError: A newer attempt has started, as that save found.
        """
        self._clock.halt()
        own = self.noticed()
        self._saves.look()
        wait_s = term_timeout_s if own is not None and own.urgent else timeout_s
        pacer = self._saves.pacer
        due = pacer is not None and pacer.due(self.step)
        ranks, began = self._need_ranks("should_stop"), time.monotonic()
        saves = self._saves
        most, any_due, lost, busy, *times = ranks.maximum(
            [encode(own), int(due), int(saves.lost), int(saves.busy), *self._times(own_s)],
            timeout_s=wait_s,
        )
        self.own_s = tuple(time_us / 1e6 for time_us in times)
        self._pulse.voted(time.monotonic() - began)
        self._due, self._saving = bool(any_due), bool(busy)
        agreed = own if own is not None and encode(own) == most else decode(most)
        if agreed is not None:
            saves.heard = saves.heard or Heard(agreed, agreed.at or time.time())
        elif lost:
            self.settle()
        self._clock.go()
        return agreed

    def _times(self, own_s: float | None) -> list[int]:
        """Return a place for each rank, with the microseconds of this one in its own.

        The vote is a maximum, so after it all of them are filled.
        """
        if own_s is None:
            return []
        times = [0] * self.env.world_size
        times[self.env.rank] = round(own_s * 1e6)
        return times

    def checkpoint_due(
        self, step: int, *, mtbf_s: float = MTBF_S, max_interval_s: float = MAX_INTERVAL_S
    ) -> bool:
        """Return whether ``step`` is worth a checkpoint; the same on all ranks, no collective.

        It says what the last `should_stop` agreed on: call that and then this after each step.
        From the first call on, rank 0 weighs what saves cost against how often work is lost; see
        `orchestrator.checkpoint.interval`.

        Args:
            step: Completed optimizer steps.
            mtbf_s: The expected mean time between ends that lose work, in seconds; the run's own
                attempts correct it.
            max_interval_s: The most seconds of training between two checkpoints.
        """
        if not self._paced and self.env.rank == 0:
            self._saves.pacer = Pacer(
                self.env, step=step, mtbf_s=mtbf_s, max_interval_s=max_interval_s
            )
        self._paced = True
        self.step = max(self.step, step)  # for scripts that send no heartbeats
        return self._due

    def agreed(self, fine: bool, *, timeout_s: float = 3600.0) -> bool:
        """Return whether all ranks say that it is fine. Collective.

        Raises:
            VoteError: The ranks did not come together in time.
        """
        (bad,) = self._need_ranks("agreed").maximum([int(not fine)], timeout_s=timeout_s)
        return not bad

    @contextlib.contextmanager
    def checkpoint(
        self,
        step: int,
        *,
        keep_last: int = 2,
        keep_every: int | None = None,
        reason: str = "",
        known: dict[str, FileEntry] | None = None,
    ) -> Iterator[Path]:
        """Give a fresh directory to save ``step`` into, then publish it. Collective.

        Whatever a rank raises in the block (DCP's CheckpointException included) is told to all
        ranks; then nothing is published, and all of them raise. A save in the background is
        settled first; where that one came to nothing, this newer one stands in for it.

        Args:
            step: Completed optimizer steps.
            keep_last: How many of the newest complete checkpoints stay.
            keep_every: Steps that are a multiple of this stay too.
            reason: Why it is saved now, for the ledger; by default "notice" or "interval".
            known: Filled in the block with files that this rank has made durable and described
                while it wrote them; they are not read once more.

        Raises:
            CheckpointError: It was not saved.
            SupersededError: A newer attempt has started.
        """
        wish = Wish(step=step, keep_last=keep_last, keep_every=keep_every, reason=reason)
        ranks = self._need_ranks("checkpoint")
        with self.busy(SAVING):
            self._saves.settle(ranks)
            self._quarantine_rejected()
            with self._saves.blocking(ranks, wish, known) as folder:
                yield folder
        self._due = False

    def checkpoint_in_background(
        self,
        step: int,
        take: Callable[[], Job],
        *,
        keep_last: int = 2,
        keep_every: int | None = None,
        reason: str = "",
        timeout_s: float = 3600.0,
    ) -> None:
        """Save ``step`` while training goes on. Collective; returns as soon as it has begun.

        A thread publishes it once all ranks have written. At most one save is under way: this
        waits for the one before. Call `should_stop` after each step, which raises on all ranks if
        the save came to nothing, and `settle` before the end.

        Args:
            step: Completed optimizer steps.
            take: Called at once on each rank; returns what writes this rank's files. It must write
                a copy of the state, which its `stage` may still make: what training changes
                meanwhile would tear it. See `orchestrator.runtime.background.Job`.
            keep_last: See `checkpoint`.
            keep_every: See `checkpoint`.
            reason: See `checkpoint`.
            timeout_s: For how long ranks wait for one another in the background; that of the first
                save counts.

        Raises:
            CheckpointError: The save before came to nothing.
            SupersededError: A newer attempt has started.
        """
        wish = Wish(step=step, keep_last=keep_last, keep_every=keep_every, reason=reason)
        ranks = self._need_ranks("checkpoint_in_background")
        self.settle()
        with self.busy(SAVING):
            self._quarantine_rejected()
            self._saves.begin(ranks, wish, take, timeout_s=timeout_s)
        self._due, self._saving = False, True

    def prepare_background(self, *, timeout_s: float = 3600.0) -> None:
        """Make the process group of saves in the background now, not with the first. Collective."""
        self._saves.prepare(timeout_s)

    def settle(self, *, must: bool = True) -> None:
        """Wait until the save in the background is published, if there is one. Collective.

        After a notice it is abandoned where it would take the time that a newer save needs.

        Args:
            must: Raise if it came to nothing; else that is only written down.

        Raises:
            CheckpointError: It came to nothing.
            SupersededError: A newer attempt has started.
        """
        if not self._saves.under_way:
            return
        with self.busy(SAVING):
            problem = self._saves.settle(self._need_ranks("settle"))
        if must and problem is not None:
            raise problem

    def _quarantine_rejected(self) -> None:
        if self.env.rank == 0 and self._rejected:
            for checkpoint, reason in self._rejected:
                self._quarantined.append(resuming.set_aside(self.env, checkpoint, reason))
            resuming.write_resume(self.env, step=self._first_step, quarantined=self._quarantined)
        self._rejected = []

    # -- the end -------------------------------------------------------------------------------

    def stopped(self, *, step: int, saved: int | None = None, reason: str) -> None:
        """Say that the attempt ends after ``step`` steps as agreed; then exit with 0.

        Args:
            step: Completed steps.
            saved: The newest published step; what this run knows of, if left out.
            reason: Why, in a few words.
        """
        self._report("stopped", step=step, saved=saved, reason=reason)

    def finished(self, *, step: int) -> None:
        """Say that the last step is done. Writes the end mark, so that nobody restarts the run.

        Raises:
            SupersededError: A newer attempt has started.
        """
        if self.env.rank == 0:
            check_fence(self.env)
            mark = {"step": step, "attempt": self.env.attempt, "at": time.time()}
            write_json(self.env.run.finished, mark)
        self._report("finished", step=step, saved=None, reason="the last step is done")

    def failed(self, outcome: Outcome, *, reason: str) -> None:
        """Say that this rank failed; of several failures the first is kept. Used by the guard."""
        content = self._status(outcome, step=self.step, saved=None, reason=reason)
        write_status(self.env, content, replace=False)

    def _report(self, outcome: Outcome, *, step: int, saved: int | None, reason: str) -> None:
        self.step = step
        self._pulse.end()
        if self.env.rank == 0:
            self._write_progress(step)
            write_status(self.env, self._status(outcome, step=step, saved=saved, reason=reason))

    def _write_progress(self, step: int | None) -> None:
        beat = self._pulse.beat
        told = {} if step is None else {"step": step}
        content = {**told, "at": time.time(), "phase": beat.phase, "limit_s": beat.limit_s}
        write_json(self.env.files.progress, content, durable=False)

    def _status(
        self, outcome: Outcome, *, step: int, saved: int | None, reason: str
    ) -> dict[str, object]:
        if self._first_step is None:  # it ended before it knew where to resume
            found = newest_complete(self.env.checkpoints)
            self._first_step = self._saves.saved_step = found.step if found else None
        first = self._first_step or 0
        return status(
            self.env,
            outcome=outcome,
            reason=reason,
            first_step=first,
            step=max(step, first),
            saved_step=saved if saved is not None else self._saves.saved_step,
        )

    # -- agreement -----------------------------------------------------------------------------

    def _agreement(self) -> Agreement | None:
        if self._ranks is None and "torch" in sys.modules:
            from orchestrator.runtime import collective

            if collective.is_ready():
                self._ranks = Meeting(collective.Ranks(), self._pulse)
        return self._ranks

    def _need_ranks(self, what: str) -> Agreement:
        ranks = self._agreement()
        if ranks is None:
            raise RunError(
                f"run.{what}() needs all {self.env.world_size} ranks to agree: call"
                " torch.distributed.init_process_group() first"
            )
        return ranks
