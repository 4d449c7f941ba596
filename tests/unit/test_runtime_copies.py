"""What ranks tell one another at a resume of copies they hold, and in a vote of their own times."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint import Checkpoint, list_checkpoints
from orchestrator.errors import CheckpointError
from orchestrator.runtime import Run, resuming
from orchestrator.runtime.notices import NoticeBoard

from .runs import Threads, environment, make_run

NAMES = ["__0_0.distcp", "__1_0.distcp", "other"]


def saved(root: Path, *steps: int) -> None:
    run = make_run(root)
    run.resume()
    for step in steps:
        with run.checkpoint(step) as folder:
            for name in NAMES:
                (folder / name).write_text(f"{name} of {step}")


def spoil(root: Path, name: str, *, step: int) -> None:
    path = root / f"checkpoints/step-{step}" / name
    path.write_text(path.read_text().swapcase())


def choose(root: Path, held: list[Collection[str]], verify: Any = "full") -> list[Any]:
    ranks, env = Threads(len(held)), environment(root, attempt=2)
    return ranks.run(
        lambda rank: resuming.choose(ranks, env, resuming.Look(verify, lambda found: held[rank]))
    )


def test_what_a_node_holds_is_left_to_whoever_loads_it(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    spoil(tmp_path, NAMES[1], step=2)
    found = choose(tmp_path, [[NAMES[0]], [NAMES[1]]])
    assert [one.checkpoint.step for one in found] == [2, 2]
    assert {one.checkpoint.unverified for one in found} == {frozenset(NAMES[:2])}


def test_what_nobody_holds_is_verified(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    spoil(tmp_path, NAMES[2], step=2)
    found = choose(tmp_path, [NAMES[:1], NAMES[:2]])
    assert [one.checkpoint.step for one in found] == [1, 1]
    assert "other is not what was written" in found[0].quarantined[0].reason


def test_without_hashes_nothing_is_left(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    found = choose(tmp_path, [NAMES, NAMES], verify="size")
    assert found[0].checkpoint.unverified == frozenset()


def test_a_rank_that_cannot_say_what_it_holds(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    def held(found: Checkpoint) -> Collection[str]:
        raise CheckpointError("the manifest is damaged")

    run = make_run(tmp_path, attempt=2)
    found = run.resume(held=held)
    assert found is not None
    assert found == list_checkpoints(tmp_path / "checkpoints")[0]


def test_a_rejected_checkpoint_is_asked_for_anew(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    asked: list[int] = []

    def held(found: Checkpoint) -> Collection[str]:
        asked.append(found.step)
        return NAMES

    run = make_run(tmp_path, attempt=2)
    newest = run.resume(held=held)
    assert newest is not None
    older = run.reject(newest, reason="damaged")
    assert asked == [2, 1]
    assert older.unverified == frozenset(NAMES)


# -- their own times -------------------------------------------------------------------------------


@pytest.mark.parametrize("own_s", [[0.25, 0.5, 0.125], [0.0, 0.0, 1e-6]])
def test_the_vote_carries_the_time_of_each_rank(tmp_path: Path, own_s: list[float]) -> None:
    ranks = Threads(3)
    runs = [
        Run(
            environment(tmp_path, rank=rank, world_size=3),
            NoticeBoard(signals=(), file=None, under_torchrun=False),
            ranks=ranks,
        )
        for rank in range(3)
    ]
    assert ranks.run(lambda rank: runs[rank].should_stop(own_s=own_s[rank])) == [None] * 3
    assert [run.own_s for run in runs] == [tuple(own_s)] * 3
    assert ranks.run(lambda rank: runs[rank].should_stop()) == [None] * 3
    assert [run.own_s for run in runs] == [()] * 3
