"""Runs as a training script sees them, for tests: without torch, and with threads for ranks."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime import Run
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.notices import NoticeBoard


class Clock:
    """Time that passes only when told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=20)
        self._local = threading.local()
        self._values: list[Any] = [None] * world_size

    @property
    def rank(self) -> int:
        return int(self._local.rank)

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        return [max(column) for column in zip(*self._exchange(values), strict=True)]

    def broadcast(self, value: Any = None) -> Any:
        return self._exchange(value)[0]

    def gather(self, value: Any) -> list[Any]:
        found = self._exchange(value)
        return found if self.rank == 0 else []

    def _exchange(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def run(self, job: Callable[[int], Any]) -> list[Any]:
        """Run ``job`` on each rank; return what each returned or raised."""
        found: list[Any] = [None] * self.world_size

        def one(rank: int) -> None:
            self._local.rank = rank
            try:
                found[rank] = job(rank)
            except Exception as problem:
                found[rank] = problem

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def environment(root: Path, *, attempt: int = 1, rank: int = 0, world_size: int = 1) -> Environment:
    run = RunLayout(root)
    run.attempt(attempt).root.mkdir(parents=True, exist_ok=True)
    return Environment(
        run=run,
        attempt=attempt,
        checkpoints=run.checkpoints,
        notice_file=root / "notice",
        notice_signals=("USR2", "TERM"),
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        under_torchrun=False,
    )


def make_run(root: Path, *, attempt: int = 1) -> Run:
    env = environment(root, attempt=attempt)
    board = NoticeBoard(signals=(), file=env.notice_file, under_torchrun=False)
    return Run(env, board)


def save(run: Run, step: int, **options: Any) -> Path:
    with run.checkpoint(step, **options) as folder:
        (folder / "data").write_text(f"step {step}")
    return run.env.checkpoints / f"step-{step}"


def read(path: Path) -> Any:
    text = path.read_text()
    assert text.count("\n") == 1
    return json.loads(text)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def refuse(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: Path,
    number: int,
    *,
    while_: Callable[[], bool] = lambda: True,
) -> list[Path]:
    """Let ``method`` of ``path`` fail as the system does; return a list of who was refused."""
    real, refused = getattr(Path, method), []

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self == path and while_():
            refused.append(self)
            raise OSError(number, os.strerror(number), str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, method, fail)
    return refused
