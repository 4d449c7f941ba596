"""What several of the modules share: the real cluster, a desk on one rank, runs of two workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.trainings import Job, MakeJob, write_text
from tests.slurm.conftest import cluster, real_slurm, session_cluster, user

if TYPE_CHECKING:
    from orchestrator.trainer.world import World
    from tests.e2e.desk import Desk

__all__ = ["cluster", "real_slurm", "session_cluster", "user"]

# torch is imported by the fixtures: modules without it are collected where it is not installed.


@pytest.fixture(scope="module")
def lone_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of one rank, for a module."""
    import torch.distributed as dist

    from orchestrator.runtime.environment import read_environment
    from orchestrator.trainer.world import connect
    from tests.e2e.desk import Desk

    run = tmp_path_factory.mktemp("run")
    env = read_environment({"FSDPQ_RUN_DIR": str(run), "FSDPQ_ATTEMPT": "1"})
    yield connect(env, Desk(run, None).spec("x"))  # type: ignore[arg-type]
    dist.destroy_process_group()


@pytest.fixture
def desk(tmp_path: Path, lone_world: World) -> Desk:
    """Trainings of that rank in a folder of the test's own."""
    from tests.e2e.desk import Desk

    return Desk(tmp_path, lone_world)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    """Makes runs of the trainer in a folder of the test's own; their processes are ended."""
    jobs: list[Job] = []
    write_text(tmp_path / "text")

    def make(name: str = "run", **changes: Any) -> Job:
        job = Job(tmp_path / name)
        job.configure(**changes)
        jobs.append(job)
        return job

    yield make
    for process in [process for job in jobs for process in job.started]:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run that nobody interrupts, on two ranks; only to be read."""
    folder = tmp_path_factory.mktemp("whole")
    write_text(folder / "text")
    job = Job(folder / "run")
    job.configure()
    job.run(1)
    return job


@pytest.fixture
def half(whole: Job, tmp_path: Path) -> Job:
    """The same run, as it lay there after step 8 of a first attempt that was killed."""
    shutil.copytree(whole.root.parent / "text", tmp_path / "text")
    job = Job(tmp_path / "run")
    job.configure()
    for step in (4, 8):
        shutil.copytree(whole.checkpoints / f"step-{step}", job.checkpoints / f"step-{step}")
    (job.checkpoints / "LATEST").write_text("step-8\n")
    return job
