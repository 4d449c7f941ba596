"""Restarts from the nodes' own copies of a checkpoint: what is read from where, bit for bit."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402

from orchestrator.checkpoint import list_checkpoints  # noqa: E402
from orchestrator.runtime import Run  # noqa: E402
from orchestrator.runtime.environment import read_environment  # noqa: E402
from orchestrator.runtime.notices import NoticeBoard  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from orchestrator.trainer.corpus import open_corpus  # noqa: E402
from orchestrator.trainer.local_copy import LocalCopy, local_copy_of  # noqa: E402
from orchestrator.trainer.local_reader import holder  # noqa: E402
from orchestrator.trainer.metrics import Console  # noqa: E402
from orchestrator.trainer.saver import Saver  # noqa: E402
from orchestrator.trainer.world import World, connect  # noqa: E402

from .ranks import config  # noqa: E402
from .test_background_saves import assert_sound, job, until  # noqa: E402
from .trainings import MakeJob, wait_until_gone  # noqa: E402

__all__ = ["job"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]


class Desk:
    """A run of one rank in this process, and what it keeps on its node."""

    def __init__(self, folder: Path, world: World, **checkpoint: Any) -> None:
        self.folder, self.world = folder, world
        (folder / "text").write_bytes(bytes(range(256)) * 8)
        (folder / "run").mkdir()
        self.checkpoint = {"writers": 3, "local_copy": str(folder / "node"), **checkpoint}
        spec = config(folder, {"checkpoint": self.checkpoint, "global_batch": 2})
        self.spec = TrainSpec.model_validate(spec)
        self.said: list[str] = []

    def attempt(self, number: int) -> "Attempt":
        return Attempt(self, number)

    @property
    def copies(self) -> list[Path]:
        return sorted((self.folder / "node").glob("*/step-*/*"))

    def shards(self, step: int) -> list[Path]:
        return sorted((self.folder / f"run/checkpoints/step-{step}").glob("*.distcp"))


class Attempt:
    """One start of it."""

    def __init__(self, desk: Desk, number: int) -> None:
        env = read_environment(
            {"FSDPQ_RUN_DIR": str(desk.folder / "run"), "FSDPQ_ATTEMPT": str(number)}
        )
        board = NoticeBoard(signals=(), file=None, under_torchrun=False)
        self.run = Run(env, board)
        spec = desk.spec
        local = local_copy_of(spec.checkpoint.local_copy, env)
        assert isinstance(local, LocalCopy)
        checkpoint = self.run.resume(verify=spec.checkpoint.verify, held=holder(local, first=True))
        corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
        self.training = parts.build(spec, desk.world, corpus, fresh=checkpoint is None)
        console = Console(quiet=True)
        console.say = desk.said.append  # type: ignore[method-assign, assignment]
        self.saver = Saver(self.run, self.training.state, spec.checkpoint, console, 60.0, local)
        if checkpoint is not None:
            self.saver.load(checkpoint)

    def steps(self, count: int) -> list[float]:
        return [parts.train_step(self.training).loss for _ in range(count)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    env = read_environment({"FSDPQ_RUN_DIR": str(folder), "FSDPQ_ATTEMPT": "1"})
    yield connect(env, TrainSpec.model_validate(config(folder, {})))
    dist.destroy_process_group()


def spoil(file: Path) -> None:
    """Flip all bits of a file; its size stays."""
    file.chmod(0o600)
    file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))


def began(tmp_path: Path, world: World, **checkpoint: Any) -> tuple[Desk, list[float]]:
    """Return a run that was saved after two steps, and the losses of the next two."""
    desk = Desk(tmp_path, world, **checkpoint)
    first = desk.attempt(1)
    first.steps(1)
    first.saver.prepare()
    first.steps(1)
    first.saver.save_soon()
    losses = first.steps(2)
    first.saver.close()
    assert [path.name for path in desk.copies] == [path.name for path in desk.shards(2)]
    assert len(desk.copies) == 3
    for copy, shard in zip(desk.copies, desk.shards(2), strict=True):
        assert copy.read_bytes() == shard.read_bytes()
    return desk, losses


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("verify", ["full", "size"])
def test_nothing_is_read_from_the_shared_files(
    tmp_path: Path, world: World, mode: str, verify: str
) -> None:
    """They are garbage of the same size, so a byte of theirs would show."""
    desk, losses = began(tmp_path, world, mode=mode, verify=verify)
    for shard in desk.shards(2):
        spoil(shard)
    again = desk.attempt(2)
    assert again.training.state.step == 2
    assert again.steps(2) == losses
    (where,) = [said for said in desk.said if "GiB from" in said]
    assert "GiB from local copies, 0.000 GiB from the checkpoint itself" in where
    assert not where.startswith("read 0.000")


def test_a_damaged_copy_is_passed_over(
    tmp_path: Path, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    desk, losses = began(tmp_path, world)
    spoil(desk.copies[0])
    desk.copies[1].write_bytes(desk.copies[1].read_bytes()[:-1])
    again = desk.attempt(2)
    assert again.steps(2) == losses
    assert (
        f"local copy of {desk.copies[0].name} of step 2 is not what was" in capfd.readouterr().err
    )
    assert len(list_checkpoints(desk.folder / "run/checkpoints", verify=True)) == 1


def test_a_copy_that_is_gone_or_a_folder_that_is_not_ours(tmp_path: Path, world: World) -> None:
    desk, losses = began(tmp_path, world)
    (tmp_path / "node").rename(tmp_path / "moved")
    (tmp_path / "node").symlink_to("moved")
    assert desk.attempt(2).steps(2) == losses
    assert "read 0.000 GiB from local copies" in desk.said[-2]


def test_what_no_copy_covers_is_verified_at_last(tmp_path: Path, world: World) -> None:
    """A damaged file that the choice left to a copy, which is damaged too: an older one loads."""
    desk = Desk(tmp_path, world)
    first = desk.attempt(1)
    first.steps(1)
    first.saver.save()
    losses = first.steps(3)
    first.saver.save()
    first.saver.close()
    spoil(next(path for path in desk.copies if path.parent.name == "step-4.1"))
    spoil(desk.shards(4)[0])
    again = desk.attempt(2)
    assert again.training.state.step == 1
    assert again.steps(3) == losses
    assert any("its hash differs" in said for said in desk.said)
    again.run.heartbeat(2)
    assert list((desk.folder / "run/checkpoints").glob("step-4.quarantined-2"))


def test_only_the_newest_copy_stays_and_none_of_a_finished_run(
    tmp_path: Path, world: World
) -> None:
    desk = Desk(tmp_path, world)
    first = desk.attempt(1)
    for _ in range(3):
        first.steps(1)
        first.saver.save()
        first.saver.close()
    assert {path.parent.name for path in desk.copies} == {"step-3.1"}
    first.saver.forget_copies()
    assert desk.copies  # the run may come back
    first.run.finished(step=3)
    first.saver.forget_copies()
    assert not list((tmp_path / "node").iterdir())


def test_killed_in_the_middle_of_a_copy(job: Any, tmp_path: Path) -> None:
    """Two ranks; the copy of step 3 gets stuck after its first part, and all is killed."""
    node = tmp_path / "node"
    job.start(1, steps=9, every=1, mode="sync", local=node, stuck_copy_at=3)
    until(lambda: bool(list(node.glob("*/step-3.1/*.part"))) or job.ended(), "no copy began")
    assert not job.ended(), job.wait(code=None)
    for pid in [job.process.pid, *job.processes()]:
        os.kill(pid, signal.SIGKILL)
    job.wait(code=None)
    assert list(node.glob("*/step-3.1/*.part"))
    for shard in (job.checkpoints / "step-2").glob("*.distcp"):
        spoil(shard)
    job.start(2, steps=5, every=1, mode="sync", local=node)
    out = job.wait()
    assert job.status(2)["first_step"] == 2
    assert "GiB from local copies, 0.000 GiB from the checkpoint" in out
    shutil.rmtree(job.checkpoints / "step-2", ignore_errors=True)
    assert_sound(job)
    assert not list(node.iterdir())  # the run is finished


def test_a_killed_run_goes_on_from_copies(make_job: MakeJob, tmp_path: Path) -> None:
    """The trainer as it is, two ranks: the steps that are done again are the same, bit for bit."""
    node = tmp_path / "node"
    options = {"every_steps": 4, "mode": "sync", "local_copy": str(node)}
    job = make_job(checkpoint=options)
    process = job.start(1)
    job.wait_for_step(7, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    before = job.lines()
    for path in job.checkpoints.glob("step-[0-9]*/*.distcp"):
        spoil(path)
    out = job.run(2)
    resumed = job.read("attempts/2/resume.json")["step"]
    assert resumed in (4, 8)
    assert "0.000 GiB from the checkpoint itself" in out
    after = job.curve()
    assert sorted(after) == list(range(1, 13))
    for line in before[resumed:]:
        for key in ("loss", "grad_norm", "samples"):
            assert line[key] == after[line["step"]][key], (line["step"], key)
    for number, line in after.items():
        first = number in (1, resumed + 1)
        assert ("ranks" in line) != first, line
        if not first:
            ranks = line["ranks"]
            assert ranks["step"] == number - 1
            assert ranks["slowest"] in (0, 1)
            assert 0 < ranks["median_s"] <= ranks["slowest_s"]
