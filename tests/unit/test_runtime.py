"""The runtime in one process: no torch, ranks played by threads where there are several."""

from pathlib import Path

import pytest

from orchestrator.errors import CheckpointError, RunError
from orchestrator.runtime import Notice, Run, SupersededError, saving
from orchestrator.runtime.environment import read_environment
from orchestrator.runtime.notices import NoticeBoard, read_notice_file
from orchestrator.runtime.votes import decode, encode

# -- saving --------------------------------------------------------------------------------------
from .runs import Threads, environment, make_run, read, save


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_files_are_in_the_manifest(tmp_path: Path, world_size: int) -> None:
    ranks = Threads(world_size)
    env = environment(tmp_path)

    def job(rank: int) -> Path:
        folder = saving.begin(ranks, env, step=3)
        (folder / f"__{rank}_0.distcp").write_text(f"shard {rank}")
        (folder / f"own-{rank}.pt").write_text("mine")
        if rank == 0:
            (folder / ".metadata").write_text("metadata")
        return saving.finish(ranks, env, step=3, temporary=folder, error="")

    path = tmp_path / "checkpoints" / "step-3"
    assert ranks.run(job) == [path] * world_size
    manifest = read(path / "manifest.json")
    assert manifest["world_size"] == world_size
    assert len(manifest["files"]) == 2 * world_size + 1


def test_folder_that_nodes_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 writes to a disk of its own, and rank 0 never sees its file."""
    monkeypatch.setattr(saving, "VISIBLE_S", 0.3)
    ranks = Threads(2)
    env = environment(tmp_path)

    def job(rank: int) -> Path:
        folder = saving.begin(ranks, env, step=3)
        own = folder if rank == 0 else tmp_path / "other-disk"
        own.mkdir(exist_ok=True)
        (own / f"__{rank}_0.distcp").write_text(f"shard {rank}")
        return saving.finish(ranks, env, step=3, temporary=own, error="")

    found = ranks.run(job)
    assert all("__1_0.distcp is missing" in str(problem) for problem in found)
    assert all("share" in str(problem) for problem in found)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_one_failed_rank_fails_the_save(tmp_path: Path) -> None:
    ranks = Threads(2)
    env = environment(tmp_path)

    def job(rank: int) -> Path:
        folder = saving.begin(ranks, env, step=3)
        (folder / f"__{rank}_0.distcp").write_text(f"shard {rank}")
        error = "OSError: no space left" if rank == 1 else ""
        return saving.finish(ranks, env, step=3, temporary=folder, error=error)

    found = ranks.run(job)
    assert [str(problem) for problem in found] == [
        "step 3 could not be saved: rank 1: OSError: no space left"
    ] * 2
    assert list((tmp_path / "checkpoints").iterdir()) == []


class LikeCheckpointException(BaseException):
    pass


def test_base_exception_in_the_block_fails_the_save(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with (
        pytest.raises(CheckpointError, match="LikeCheckpointException: torn") as caught,
        run.checkpoint(1),
    ):
        raise LikeCheckpointException("torn")
    assert isinstance(caught.value.__cause__, LikeCheckpointException)
    assert run.saved_step is None
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_empty_save_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no rank wrote"), make_run(tmp_path).checkpoint(1):
        pass


def test_superseded_attempt_may_not_save(tmp_path: Path) -> None:
    old = make_run(tmp_path)
    save(old, 1)
    late = old.checkpoint(2)
    (late.__enter__() / "data").write_text("late")
    make_run(tmp_path, attempt=2)
    with pytest.raises(SupersededError):
        late.__exit__(None, None, None)
    with pytest.raises(SupersededError), old.checkpoint(3):
        pytest.fail("the block must not run")
    with pytest.raises(SupersededError):
        old.heartbeat(3)
    with pytest.raises(SupersededError):
        old.finished(step=3)
    assert not old.already_finished
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["LATEST", "step-1"]


def test_superseded_reaches_all_ranks(tmp_path: Path) -> None:
    ranks = Threads(2)
    env = environment(tmp_path)
    environment(tmp_path, attempt=2)
    found = ranks.run(lambda rank: saving.begin(ranks, env, step=3))
    assert all(isinstance(problem, SupersededError) for problem in found)


def test_retention(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for step in range(1, 8):
        save(run, step, keep_last=2, keep_every=3)
    left = sorted(path.name for path in (tmp_path / "checkpoints").glob("step*"))
    assert left == ["step-3", "step-6", "step-7"]


# -- the end of an attempt -----------------------------------------------------------------------


def test_stopped_with_and_without_progress(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.resume()
    run.stopped(step=0, reason="USR2")
    text = run.env.files.status.read_text()
    assert '"outcome": "stopped"' in text
    assert '"progress": false' in text
    assert '"saved_step": null' in text
    save(run, 4)
    run.stopped(step=4, reason="two\nlines")
    status = read(run.env.files.status)
    assert (status["first_step"], status["step"], status["saved_step"]) == (0, 4, 4)
    assert status["progress"] is True
    assert status["reason"] == "two lines"
    again = make_run(tmp_path, attempt=2)
    again.resume()
    again.stopped(step=4, reason="USR2")
    assert read(again.env.files.status)["progress"] is False


def test_stopped_before_resuming_knows_the_saved_step(tmp_path: Path) -> None:
    save(make_run(tmp_path), 4)
    run = make_run(tmp_path, attempt=2)
    run.stopped(step=0, reason="USR2 during start-up")
    status = read(run.env.files.status)
    assert (status["first_step"], status["step"], status["saved_step"]) == (4, 4, 4)
    assert status["progress"] is False


def test_finished_leaves_the_end_mark(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert not run.already_finished
    run.finished(step=9)
    assert read(tmp_path / "finished.json")["step"] == 9
    assert read(run.env.files.status)["progress"] is True
    assert make_run(tmp_path, attempt=2).already_finished


def test_first_failure_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.failed("failed", reason="first")
    run.failed("failed", reason="second")
    assert read(run.env.files.status)["reason"] == "first"
    left = sorted(path.name for path in run.env.files.root.iterdir())
    assert left == ["status.json"]


def test_heartbeat_is_written_once_a_second(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for step in range(1, 50):
        run.heartbeat(step)
    assert read(run.env.files.progress)["step"] == 1
    assert run.step == 49
    run.stopped(step=50, reason="x")
    assert read(run.env.files.progress)["step"] == 50


# -- notices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "signal", "at"),
    [
        ("", None, 0),
        ("\n", None, 0),
        ("USR2 1732900000\n", "USR2", 1732900000),
        ("USR2 1732900000", "USR2", 1732900000),
        ("SIGUSR2\n", "USR2", 0),
        ("TERM 5\nTERM 6\n", "TERM", 5),
        ("USR2 5\nTERM 6\n", "TERM", 6),
        ("spot-reclaim 7 \n", "SPOT-RECLAIM", 7),
        ("USR2 x\n", "USR2", 0),
    ],
)
def test_notice_file(tmp_path: Path, text: str, signal: str | None, at: float) -> None:
    path = tmp_path / "notice"
    assert read_notice_file(path) is None
    path.write_text(text)
    found = read_notice_file(path)
    assert found == (None if signal is None else Notice(signal, at, "file"))


def test_own_view_is_the_vote_of_a_single_rank(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.noticed() is None
    assert run.should_stop() is None
    (tmp_path / "notice").write_text("USR2 5\n")
    assert run.noticed() == run.should_stop() == Notice("USR2", 5, "file")


def test_most_urgent_wins_the_vote() -> None:
    words = [None, Notice("SPOT", 0, "file"), Notice("USR1", 0, "file"), Notice("USR2", 0, "file")]
    votes = [encode(notice) for notice in [*words, Notice("TERM", 0, "file")]]
    assert votes == sorted(set(votes))
    assert decode(votes[0]) is None
    assert decode(votes[1]) == Notice("NOTICE", 0, "vote")
    assert decode(votes[3]) == Notice("USR2", 0, "vote")
    assert decode(votes[4]) == Notice("TERM", 0, "vote")


def test_several_ranks_need_torch_to_agree(tmp_path: Path) -> None:
    env = environment(tmp_path, world_size=2)
    run = Run(env, NoticeBoard(signals=(), file=None, under_torchrun=False))
    with pytest.raises(RunError, match="init_process_group"):
        run.should_stop()


# -- the environment -----------------------------------------------------------------------------


def test_environment_of_the_launcher(tmp_path: Path) -> None:
    env = read_environment(
        {
            "FSDPQ_RUN_DIR": str(tmp_path),
            "FSDPQ_ATTEMPT": "3",
            "FSDPQ_CHECKPOINT_DIR": str(tmp_path / "ckpt"),
            "FSDPQ_NOTICE_FILE": "/tmp/notice",
            "FSDPQ_NOTICE_SIGNALS": "SIGUSR1, TERM",
            "RANK": "5",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "8",
            "TORCHELASTIC_RUN_ID": "x",
        }
    )
    assert (env.attempt, env.rank, env.local_rank, env.world_size) == (3, 5, 1, 8)
    assert env.notice_signals == ("USR1", "TERM")
    assert env.checkpoints == tmp_path / "ckpt"
    assert env.under_torchrun
    assert env.files.root.is_dir()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"FSDPQ_RUN_DIR": "/nowhere/at/all"}, "no directory"),
        ({"FSDPQ_ATTEMPT": "two"}, "whole number"),
        ({"RANK": "-1"}, "whole number"),
    ],
)
def test_environment_that_makes_no_sense(
    tmp_path: Path, changes: dict[str, str], text: str
) -> None:
    with pytest.raises(RunError, match=text):
        read_environment({"FSDPQ_RUN_DIR": str(tmp_path), "FSDPQ_ATTEMPT": "1", **changes})


def test_unknown_signal() -> None:
    with pytest.raises(RunError, match="no signal"):
        NoticeBoard(signals=("NOPE",), file=None, under_torchrun=False)


def test_standalone_counts_its_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [read_environment({}).attempt for _ in range(3)] == [1, 2, 3]
    other = read_environment({"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"})
    assert other.attempt == 3
    with pytest.raises(RunError, match="FSDPQ_RUN_DIR"):
        read_environment({"GROUP_WORLD_SIZE": "2"})
