"""What several of the modules share: the real cluster with one user, and a desk on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
