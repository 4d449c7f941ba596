"""One real Slurm cluster for the whole run, put back in order before each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .user import FsdpqUser

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "ip", "nsenter", "setpriv")
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that no one forgets to."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def real_slurm() -> None:
    """Skip where no cluster can be started, or fail if FSDPQ_REQUIRE_SLURM asks for one."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    reason = "the test cluster needs root" if os.geteuid() != 0 else ""
    if missing:
        reason = f"the test cluster needs {', '.join(missing)} (see CONTRIBUTING.md)"
    if reason and os.environ.get("FSDPQ_REQUIRE_SLURM"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def session_cluster(real_slurm: None) -> Iterator[Cluster]:
    """The cluster, in whatever state the last test left it."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(session_cluster: Cluster) -> Cluster:
    """The cluster as new: no jobs, all hosts idle, the first configuration."""
    session_cluster.reset()
    return session_cluster


@pytest.fixture
def user(cluster: Cluster) -> FsdpqUser:
    """Alice on the login node, in a fresh folder."""
    return FsdpqUser(cluster)
