"""The run as a training script sees it: where to resume, when to stop, what has been saved."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from orchestrator.checkpoint import Checkpoint, FileEntry
from orchestrator.checkpoint.interval import MAX_INTERVAL_S, MTBF_S
from orchestrator.errors import CheckpointError
from orchestrator.rundir.beat import RESUMING, SAVING
from orchestrator.runtime import resuming
from orchestrator.runtime.ahead import Ahead, Copies, no_copies
from orchestrator.runtime.alone import Agreement, Alone
from orchestrator.runtime.background import Job, Wish
from orchestrator.runtime.beginning import Beginning
from orchestrator.runtime.cancelling import CancelMark
from orchestrator.runtime.ending import Ending
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.fence import check_fence
from orchestrator.runtime.logbook import Logbook
from orchestrator.runtime.notices import Notice, NoticeBoard
from orchestrator.runtime.patience import PATIENCE_S, Patience
from orchestrator.runtime.progress import Progress
from orchestrator.runtime.pulse import Pulse
from orchestrator.runtime.quorum import Quorum
from orchestrator.runtime.reports import Outcome
from orchestrator.runtime.savelog import Save
from orchestrator.runtime.saves import Saves
from orchestrator.runtime.stepclock import StepClock
from orchestrator.runtime.votes import Vote, own_times

_RESUME_WAIT_S = 3600.0


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
        self._quorum = Quorum(env, ranks, self._pulse)
        self._cancel = CancelMark(env)
        self._ahead = Ahead()
        self._saves, self._beginning = Saves(env), Beginning(env, self._ahead)
        self._logbook, self._clock = Logbook(env), StepClock()
        self._progress = progress = Progress(env, self._pulse)
        self._ending = Ending(env, self._pulse, progress, self._beginning, self._saves)
        self._due = self._saving = False

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
        ``copies`` says which files this node has elsewhere; whoever loads those asks `known_hash`.
        """
        self._ahead.begin(self.env, copies)

    def known_hash(self, file: IO[bytes]) -> str | None:
        """Return the SHA-256 of an open file in hexadecimal digits, if it was hashed ahead."""
        return self._ahead.known_of(file)

    def resume(
        self,
        *,
        verify: resuming.Verify = "full",
        required: bool = False,
        held: resuming.Held | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Checkpoint | None:
        """Return the checkpoint to start from, None for a start at step 0. Collective.

        Rank 0 takes the newest one that verifies and quarantines those that do not. Before
        torch.distributed is initialised, the other ranks wait for its decision on disk.

        Args:
            verify: "full" compares hashes too, "size" only lengths.
            required: There must be one. It is so anyway where the run has ever saved.
            held: Says which files this rank has copies of elsewhere; on all ranks or on none. What
                a rank has is left `unverified` here: whoever loads it compares the hashes.
            patience_s: For how long what cannot be read is looked at again, unless a notice comes.

        Raises:
            CheckpointError: There should be a usable checkpoint and there is none, or the newest
                cannot be read and may be sound.
        """
        again = Patience(patience_s, hurry=lambda: self.noticed() is not None)
        self._beginning.look = resuming.Look(verify, held, again=again)
        ranks = self._quorum.met()
        with self.busy(RESUMING):
            self._beginning.end_ahead(wanted=ranks is not None or self.env.rank == 0)
            if ranks is None and self.env.rank != 0:
                with self._pulse.waiting():
                    chosen = resuming.wait_for_resume(self.env, timeout_s=_RESUME_WAIT_S)
            else:
                choice = self._beginning.newest(ranks or Alone())
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
        self._beginning.reject(checkpoint, reason)
        ranks = self._quorum.need("reject")
        with self.busy(RESUMING):
            choice = self._beginning.older(ranks, before=checkpoint.step)
            chosen = self._settle(choice, required=True)
        self._start_from(chosen)
        assert chosen is not None  # _settle raises without one
        return chosen

    def _settle(self, choice: resuming.Choice, *, required: bool) -> Checkpoint | None:
        chosen = choice.checkpoint
        if chosen is None and (required or choice.history):
            self._refuse()
        self._beginning.record(chosen.step if chosen else None)
        return chosen

    def _refuse(self) -> NoReturn:
        """Say that there is no usable checkpoint, then fail on all ranks.

        In this order: the first rank that ends takes the others with it, and the word that keeps
        a watcher from trying again must be on disk by then.
        """
        error = self._beginning.refusal()
        self.step = self._beginning.step = 0
        self._ending.report("no_checkpoint", step=0, reason=error)
        self._beginning.record(None, error)
        if (ranks := self._quorum.met()) is not None:
            ranks.maximum([0], timeout_s=_RESUME_WAIT_S)
        raise CheckpointError(error)

    def _start_from(self, chosen: Checkpoint | None) -> Checkpoint | None:
        self.step = self._beginning.at(chosen)
        self._saves.saved_step = chosen.step if chosen else None
        self._clock.restart()
        return chosen

    # -- while training ------------------------------------------------------------------------

    def heartbeat(self, step: int) -> None:
        """Say that ``step`` steps are done. Rank 0 writes it down, at most once a second.

        Raises:
            SupersededError: A newer attempt has started; only rank 0 looks.
        """
        self.step = step
        self._pulse.step(step)
        if self._progress.stepped():
            check_fence(self.env)
            self._beginning.quarantine_rejected()
            self._progress.write(step)

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
            self._progress.write_phase(self.step)
            yield
        self._progress.write_phase(self.step)
        self._clock.go()

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
        return self._board.look() or self._cancel.look()

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
        saves = self._saves
        saves.look()
        wait_s = term_timeout_s if own is not None and own.urgent else timeout_s
        due = saves.due(self.step)
        vote = Vote(own, due, saves.lost, saves.busy, own_times(own_s, self.env))
        agreed = self._vote(vote, timeout_s=wait_s)
        self._due, self._saving, self.own_s = agreed.due, agreed.busy, agreed.times_s
        if agreed.notice is not None:
            saves.hear(agreed.notice)
        elif agreed.lost:
            self.settle()
        self._clock.go()
        return agreed.notice

    def _vote(self, own: Vote, *, timeout_s: float) -> Vote:
        ranks, began = self._quorum.need("should_stop"), time.monotonic()
        most = ranks.maximum(own.numbers(), timeout_s=timeout_s)
        self._pulse.voted(time.monotonic() - began)
        return own.outcome(most)

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
        self._saves.pace(step, mtbf_s=mtbf_s, max_interval_s=max_interval_s)
        self.step = max(self.step, step)  # for scripts that send no heartbeats
        return self._due

    def agreed(self, fine: bool, *, timeout_s: float = 3600.0) -> bool:
        """Return whether all ranks say that it is fine. Collective.

        Raises:
            VoteError: The ranks did not come together in time.
        """
        (bad,) = self._quorum.need("agreed").maximum([int(not fine)], timeout_s=timeout_s)
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
        ranks = self._quorum.need("checkpoint")
        with self.busy(SAVING):
            self._saves.settle(ranks)
            self._beginning.quarantine_rejected()
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
        ranks = self._quorum.need("checkpoint_in_background")
        self.settle()
        with self.busy(SAVING):
            self._beginning.quarantine_rejected()
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
            problem = self._saves.settle(self._quorum.need("settle"))
        if must and problem is not None:
            raise problem

    # -- the end -------------------------------------------------------------------------------

    def stopped(self, *, step: int, saved: int | None = None, reason: str) -> None:
        """Say that the attempt ends after ``step`` steps as agreed; then exit with 0.

        Args:
            step: Completed steps.
            saved: The newest published step; what this run knows of, if left out.
            reason: Why, in a few words.
        """
        self.step = step
        self._ending.report("stopped", step=step, saved=saved, reason=reason)

    def finished(self, *, step: int) -> None:
        """Say that the last step is done. Writes the end mark, so that nobody restarts the run.

        Raises:
            SupersededError: A newer attempt has started.
        """
        self._ending.mark(step)
        self.step = step
        self._ending.report("finished", step=step, reason="the last step is done")

    def failed(self, outcome: Outcome, *, reason: str) -> None:
        """Say that this rank failed; of several failures the first is kept. Used by the guard."""
        self._ending.fail(outcome, step=self.step, reason=reason)
