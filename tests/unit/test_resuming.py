"""Which checkpoint an attempt begins at, and what becomes of those that are of no use."""

import errno
from pathlib import Path
from typing import Any

import pytest

from orchestrator import checkpoint as checkpoints
from orchestrator.checkpoint import Fault
from orchestrator.errors import CheckpointError
from orchestrator.runtime import resuming

from .runs import Threads, environment, flip, make_run, read, refuse, save


def test_first_attempt_starts_at_zero(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.resume() is None
    content = read(run.env.files.resume)
    assert content["step"] is None
    assert content["quarantined"] == []


def test_resume_takes_the_newest(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    first.resume()
    save(first, 5)
    save(first, 10)
    again = make_run(tmp_path, attempt=2)
    found = again.resume()
    assert found is not None
    assert (found.step, again.step, again.saved_step) == (10, 10, 10)
    assert read(again.env.files.resume)["step"] == 10


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_damaged_ones_are_set_aside(tmp_path: Path, world_size: int) -> None:
    first = make_run(tmp_path)
    for step in (1, 2, 3, 4):
        save(first, step, keep_last=9)
    flip(tmp_path / "checkpoints" / "step-4" / "data")
    (tmp_path / "checkpoints" / "step-3" / "manifest.json").unlink()
    ranks = Threads(world_size)
    env = environment(tmp_path, attempt=2)
    found = ranks.run(lambda rank: resuming.choose(ranks, env, resuming.Look()))
    assert [choice.checkpoint.step for choice in found] == [2] * world_size
    assert [item.step for item in found[-1].quarantined] == [4, 3]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [
        "LATEST", "step-1", "step-2", "step-3.quarantined-2", "step-4.quarantined-2"
    ]  # fmt: skip


def test_size_only_does_not_see_a_flipped_bit(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    flip(save(first, 1) / "data")
    found = make_run(tmp_path, attempt=2).resume(verify="size")
    assert found is not None


def test_another_ranks_bad_eyes_cost_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(make_run(tmp_path), 1)
    ranks = Threads(2)
    env = environment(tmp_path, attempt=2)
    look = resuming._share_damage

    def blind(checkpoint: Any, rank: int, world_size: int, **rest: Any) -> Fault | None:
        if ranks.rank == 1:
            return Fault("the manifest cannot be read")
        return look(checkpoint, rank, world_size, **rest)

    monkeypatch.setattr(resuming, "_share_damage", blind)
    found = ranks.run(lambda rank: resuming.choose(ranks, env, resuming.Look()))
    assert [choice.checkpoint.step for choice in found] == [1, 1]


def test_no_silent_start_at_zero(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    flip(save(first, 1) / "data")
    again = make_run(tmp_path, attempt=2)
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        again.resume()
    status = read(again.env.files.status)
    assert status["outcome"] == "no_checkpoint"
    assert status["progress"] is False
    assert "hash differs" in read(again.env.files.resume)["error"]


def test_latest_alone_forbids_a_start_at_zero(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "LATEST").write_text("anything")
    with pytest.raises(CheckpointError, match="there are none"):
        make_run(tmp_path).resume()


def test_left_over_save_does_not_forbid_a_start(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-1.tmp-1").mkdir(parents=True)
    assert make_run(tmp_path, attempt=2).resume() is None


def test_required_checkpoint_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        make_run(tmp_path).resume(required=True)


def test_unlistable_checkpoints_reach_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    ranks = Threads(2)
    env = environment(tmp_path)
    found = ranks.run(lambda rank: resuming.choose(ranks, env, resuming.Look()))
    assert all(isinstance(problem, CheckpointError) for problem in found)


def test_ranks_without_torch_wait_for_rank_0(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    save(first, 7)
    env = environment(tmp_path, attempt=2, rank=1, world_size=2)
    with pytest.raises(CheckpointError, match="has not chosen"):
        resuming.wait_for_resume(env, timeout_s=0.2)
    resuming.write_resume(env, step=7, quarantined=[])
    found = resuming.wait_for_resume(env, timeout_s=0.2)
    assert found is not None
    assert found.path == tmp_path / "checkpoints" / "step-7"
    resuming.write_resume(env, step=None, quarantined=[], error="nothing there")
    with pytest.raises(CheckpointError, match="nothing there"):
        resuming.wait_for_resume(env, timeout_s=0.2)


def test_rejected_is_quarantined_once_an_older_one_works(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    save(first, 1)
    save(first, 2)
    again = make_run(tmp_path, attempt=2)
    newest = again.resume()
    assert newest is not None
    older = again.reject(newest, reason="CheckpointException: broken")
    assert older.step == 1
    assert (tmp_path / "checkpoints" / "step-2").is_dir()
    again.heartbeat(2)
    assert not (tmp_path / "checkpoints" / "step-2").exists()
    content = read(again.env.files.resume)
    assert content["step"] == 1
    assert [item["step"] for item in content["quarantined"]] == [2]


def test_nothing_is_quarantined_if_none_loads(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    save(first, 1)
    save(first, 2)
    again = make_run(tmp_path, attempt=2)
    newest = again.resume()
    assert newest is not None
    older = again.reject(newest, reason="Missing key")
    with pytest.raises(CheckpointError, match="configuration"):
        again.reject(older, reason="Missing key")
    assert read(again.env.files.status)["outcome"] == "no_checkpoint"
    assert [c.name for c in sorted((tmp_path / "checkpoints").glob("step*"))] == [
        "step-1",
        "step-2",
    ]


# -- what cannot be read is not damaged ---------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("name", ["data", "manifest.json"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_what_cannot_be_read_ends_the_attempt_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, name: str, number: int
) -> None:
    first = make_run(tmp_path)
    save(first, 1)
    path = save(first, 2)
    ranks, env = Threads(world_size), environment(tmp_path, attempt=2)
    refuse(monkeypatch, "open", path / name, number)
    found = ranks.run(lambda rank: resuming.choose(ranks, env, resuming.Look()))
    assert all(isinstance(problem, CheckpointError) for problem in found)
    assert all("not set aside" in str(problem) for problem in found)
    monkeypatch.undo()
    again = make_run(tmp_path, attempt=3).resume()
    assert again is not None
    assert again.step == 2


def test_a_bad_disk_is_no_reason_to_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_run(tmp_path)
    save(first, 1)
    path = save(first, 2)
    refuse(monkeypatch, "open", path / "data", errno.EIO)
    found = make_run(tmp_path, attempt=2).resume()
    assert found is not None
    assert found.step == 1


def test_one_rank_that_may_not_read_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 looks for itself, and it may."""
    path = save(make_run(tmp_path), 1)
    ranks, env = Threads(2), environment(tmp_path, attempt=2)
    real = Path.open

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.parent == path and getattr(ranks._local, "rank", 0) == 1:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", fail)
    found = ranks.run(lambda rank: resuming.choose(ranks, env, resuming.Look()))
    assert [choice.checkpoint.step for choice in found] == [1, 1]


def test_a_listing_says_what_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(make_run(tmp_path), 1)
    refuse(monkeypatch, "open", path / "manifest.json", errno.EACCES)
    found = checkpoints.inspect(path, step=1)
    assert (found.complete, found.unread) == (False, True)
    assert found.reason == "cannot be read: Permission denied"
