"""A save in the background: published whole or not at all, and all ranks learn which."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint import FileEntry, list_checkpoints
from orchestrator.errors import CheckpointError, FsdpqError
from orchestrator.runtime import SupersededError
from orchestrator.runtime.background import Background, Wish
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.grace import left_s, patience_s

from .runs import Threads, environment

WISH = Wish(step=5, keep_last=2, keep_every=None, reason="interval")


class Work:
    """A job that writes one file, and waits, fails or describes the file as it is told to."""

    def __init__(
        self,
        rank: int,
        *,
        stage: str = "",
        write: str = "",
        known: bool = False,
        waits: bool = False,
    ) -> None:
        self.rank = rank
        self._stage, self._write, self._known = stage, write, known
        self.go = threading.Event()
        self._cancelled = False
        if not waits:
            self.go.set()

    def stage(self) -> None:
        if self._stage:
            raise ValueError(self._stage)

    def write(self, folder: Path) -> Mapping[str, FileEntry]:
        name = f"__{self.rank}_0.distcp"
        (folder / name).write_text("shard")
        assert self.go.wait(20)
        if self._cancelled:
            raise CheckpointError("it was ended")
        if self._write:
            raise OSError(self._write)
        return {name: FileEntry(5, "known")} if self._known else {}

    def cancel(self) -> None:
        self._cancelled = True
        self.go.set()


class Save:
    """Ranks that save in the background, each with its own job."""

    def __init__(self, root: Path, works: list[Work], *, attempt: int = 1) -> None:
        self.works, self.votes = works, Threads(len(works))
        self._behind = RankedThreads(len(works))
        self._env = environment(root, attempt=attempt)

    def run(self, *, within_s: float | None = None) -> list[FsdpqError | None]:
        def one(rank: int) -> FsdpqError | None:
            env: Environment = self._env
            background = Background(self._behind.of(rank), env, timeout_s=5)
            background.begin(self.works[rank], WISH)
            assert background.upload is not None
            found = background.settle(self.votes, within_s=within_s)
            assert background.upload is None
            return found

        return list(self.votes.run(one))


class RankedThreads:
    """Ranks that are threads, each with an agreement of its own that knows its rank."""

    def __init__(self, world_size: int) -> None:
        self._shared = Threads(world_size)

    def of(self, rank: int) -> Any:
        shared = self._shared

        class One:
            world_size = shared.world_size

            def __init__(self) -> None:
                self.rank = rank

            def broadcast(self, value: Any = None) -> Any:
                shared._local.rank = rank
                return shared.broadcast(value)

            def gather(self, value: Any) -> list[Any]:
                shared._local.rank = rank
                return shared.gather(value)

        return One()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "checkpoints").glob("step*"))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_it_is_published(tmp_path: Path, world_size: int) -> None:
    found = Save(tmp_path, [Work(rank) for rank in range(world_size)]).run()
    assert found == [None] * world_size
    (checkpoint,) = list_checkpoints(tmp_path / "checkpoints", verify=True)
    assert (checkpoint.step, checkpoint.complete) == (5, True)


def test_files_that_were_described_are_not_read_again(tmp_path: Path) -> None:
    assert Save(tmp_path, [Work(0, known=True), Work(1)]).run() == [None, None]
    (checkpoint,) = list_checkpoints(tmp_path / "checkpoints", verify=True)
    assert checkpoint.reason == "__0_0.distcp is not what was written: its hash differs"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ({"stage": "no copy"}, "ValueError: no copy"),
        ({"write": "disk full"}, "OSError: disk full"),
    ],
)
@pytest.mark.parametrize("bad", [0, 1])
def test_a_failure_is_told_to_all(
    tmp_path: Path, work: dict[str, Any], words: str, bad: int
) -> None:
    works = [Work(rank, **(work if rank == bad else {})) for rank in range(2)]
    found = Save(tmp_path, works).run()
    assert [type(problem) for problem in found] == [CheckpointError] * 2
    assert [str(problem) for problem in found] == [
        f"step 5 could not be saved: rank {bad}: {words}"
    ] * 2
    assert names(tmp_path) == []


def test_a_newer_attempt_keeps_it_from_being_published(tmp_path: Path) -> None:
    works = [Work(0, waits=True), Work(1)]
    save = Save(tmp_path, works)
    (tmp_path / "attempts" / "2").mkdir(parents=True)
    works[0].go.set()
    assert [type(problem) for problem in save.run()] == [SupersededError] * 2
    assert names(tmp_path) == []


def test_an_abandoned_one_leaves_nothing(tmp_path: Path) -> None:
    found = Save(tmp_path, [Work(0), Work(1, waits=True)]).run(within_s=0.05)
    assert [str(problem) for problem in found] == [
        "step 5 could not be saved: rank 1: it was ended"
    ] * 2
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("left", "rest", "save", "wait"),
    [
        (None, 4, 14, 5),  # nobody knows: as long as it should take
        (60, 4, 14, 42.5),  # both fit: until the newer one would not any more
        (18, 4, 14, 0),  # only one fits, and the newer one is worth more
        (16, 4, 14, 16),  # the newer one does not fit: all is for the older one
        (0, 4, 14, 0),
    ],
)
def test_patience(left: float | None, rest: float, save: float, wait: float) -> None:
    assert patience_s(left_s=left, rest_s=rest, save_s=save) == wait


@pytest.mark.parametrize(
    ("notice", "since", "urgent", "left"),
    [
        (120, 20, False, 100),
        (120, 130, False, 0),
        (None, 20, False, None),
        (None, 20, True, 10),
        (120, 20, True, 10),
        (5, 1, True, 4),
    ],
)
def test_what_is_left(notice: float | None, since: float, urgent: bool, left: float | None) -> None:
    assert left_s(notice_s=notice, since_s=since, urgent=urgent) == left
