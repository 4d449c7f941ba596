"""The runtime in one process: no torch, ranks played by threads where there are several."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CheckpointError, RunError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime import Notice, Run, SupersededError, resuming, saving
from orchestrator.runtime.environment import Environment, read_environment
from orchestrator.runtime.notices import NoticeBoard, read_notice_file
from orchestrator.runtime.votes import decode, encode


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


# -- resuming ------------------------------------------------------------------------------------


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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


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

    def blind(checkpoint: Any, rank: int, world_size: int, **rest: Any) -> str | None:
        if ranks.rank == 1:
            return "the manifest cannot be read"
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


# -- saving --------------------------------------------------------------------------------------


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
