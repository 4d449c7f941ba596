"""A deterministic training script without torch on fsdpq's runtime contract.

    program.py LEDGER STEP_S EVERY

Trains until the step in LEDGER/goal, saves every EVERY steps, and writes down all it does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from orchestrator import runtime
from tests.chaos import curve, ledger
from tests.slurm.programs.counter import Sockets

KEEP = 4
# How long a rank is half-way through its file: a fault that waits for a save has to meet it.
SAVE_S = 0.3


class Trainer:
    """One rank."""

    def __init__(self, run: runtime.Run, ranks: Sockets, folder: Path) -> None:
        self.run = run
        self.ranks = ranks
        self.folder = folder
        self.rank = ranks.rank
        self.step = 0
        self.goal: int | None = None
        self.state = curve.START

    def note(self, kind: str, **facts: object) -> None:
        line = {"kind": kind, "attempt": self.run.env.attempt, "step": self.step, **facts}
        ledger.write(self.folder, self.rank, line)

    def ordered(self, order: str) -> bool:
        return ledger.take_order(self.folder, order, self.rank)

    @property
    def done(self) -> bool:
        return self.goal is not None and self.step >= self.goal

    def resume(self) -> None:
        found = self.run.resume()
        if found is not None:
            self.step = found.step
            self.state = curve.unpack((found.path / self.file).read_bytes())
        self.note("resumed")
        self.goal = self.ranks.broadcast(ledger.goal(self.folder))

    @property
    def file(self) -> str:
        return f"rank-{self.rank}.bin"

    def train(self, step_s: float) -> None:
        """Do one step together with the other ranks."""
        time.sleep(step_s)
        self.step += 1
        if self.ordered("sleep"):
            time.sleep(100_000)
        if self.ordered("raise"):
            raise ArithmeticError(f"told to fail at step {self.step}")
        world_size = self.ranks.world_size
        mine = curve.samples(self.step, rank=self.rank, world_size=world_size)
        self.state = curve.advance(self.state, mine)
        shared = self.ranks.share((self.rank, self.state, ledger.goal(self.folder)))
        states = [state for _, state, _ in sorted(shared, key=lambda item: item[0])]
        # Rank 0's word: the others may have looked before the goal was there.
        self.goal = next(goal for rank, _, goal in shared if rank == 0)
        self.note("step", loss=curve.loss(states), samples=mine)
        self.write_metrics(curve.loss(states))

    def write_metrics(self, loss: str) -> None:
        """Write what `fsdpq status` shows."""
        if self.rank == 0:
            attempt, number = self.run.env.attempt, float.fromhex(loss)
            line = {"attempt": attempt, "step": self.step, "loss": number, "at": time.time()}
            with self.run.env.run.metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def save(self) -> None:
        self.note("saving")
        with self.run.checkpoint(self.step, keep_last=KEEP) as folder:
            data = curve.pack(self.state)
            half = len(data) // 2
            with (folder / self.file).open("wb") as file:
                file.write(data[:half])
                file.flush()
                time.sleep(SAVE_S)
                if self.ordered("die-in-save"):
                    os.kill(os.getpid(), signal.SIGKILL)
                file.write(data[half:])
        self.note("saved")


def main() -> None:
    folder, step_s, every = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    ranks = Sockets()
    run = runtime.attach(ranks=ranks)
    with runtime.guard(run):
        trainer = Trainer(run, ranks, folder)
        ids = {"pid": os.getpid(), "parent": os.getppid()}
        trainer.note("start", host=os.uname().nodename, world_size=ranks.world_size, **ids)
        if not run.already_finished:
            loop(trainer, step_s, every)
        trainer.note("end")


def loop(trainer: Trainer, step_s: float, every: int) -> None:
    trainer.resume()
    notice = trainer.run.should_stop()
    while not notice and not trainer.done:
        trainer.train(step_s)
        trainer.run.heartbeat(trainer.step)
        notice = trainer.run.should_stop()
        if notice or trainer.step % every == 0 or trainer.done:
            trainer.save()
    if notice and not trainer.done:
        trainer.run.stopped(step=trainer.step, reason=notice.signal)
    else:
        trainer.run.finished(step=trainer.step)


if __name__ == "__main__":
    main()
