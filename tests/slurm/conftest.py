"""One real Slurm cluster for the whole run, put back in order before each test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, ClusterConfig, DaemonError, NamespaceError, SlurmVersion
from .cluster.config import SYSTEM_PATH
from .user import FsdpqUser

ON_MACHINE = ("ip", "nsenter", "unshare")
IN_ROOT = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "setpriv")
FOLDER = Path(__file__).parent
START_S = pytest.StashKey[float]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how long the cluster took to start: a machine too noisy for a test to judge."""
    if START_S in config.stash:
        terminalreporter.write_line(f"test cluster started in {config.stash[START_S]:.1f} s")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that no one forgets to."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def real_slurm() -> SlurmVersion:
    """The Slurm release to test; skips where there is none, or fails if one is required.

    The environment decides: FSDPQ_REQUIRE_SLURM asks for a failure, and FSDPQ_SLURM names another
    release than the machine's own and the root directory that it is installed in, such as
    `24.11:/srv/slurm-24.11`.
    """
    version = SlurmVersion.parse(os.environ.get("FSDPQ_SLURM", "22.05:/"))
    reason = _what_is_missing(version)
    if reason and os.environ.get("FSDPQ_REQUIRE_SLURM"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return version


def _what_is_missing(version: SlurmVersion) -> str:
    """Why no cluster can be started; empty if one can."""
    if os.geteuid() != 0:
        return "the test cluster needs root"
    folders = ":".join(str(version.root / folder) for folder in ("usr/sbin", "usr/bin"))
    missing = [program for program in IN_ROOT if not shutil.which(program, path=folders)]
    missing += [program for program in ON_MACHINE if not shutil.which(program, path=SYSTEM_PATH)]
    return f"the test cluster needs {', '.join(missing)}" if missing else ""


@pytest.fixture(scope="session")
def session_cluster(real_slurm: SlurmVersion, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, in whatever state the last test left it."""
    began = time.monotonic()
    with started(ClusterConfig(version=real_slurm)) as cluster:
        request.config.stash[START_S] = time.monotonic() - began
        yield cluster


@contextlib.contextmanager
def started(config: ClusterConfig) -> Iterator[Cluster]:
    """A cluster; a start that fails is tried again, for one would take all tests with it.

    Several of these start at once when tests run in parallel, and MariaDB's installation has been
    seen to fail then.
    """
    cluster = Cluster(config)
    for left in (2, 1, 0):
        try:
            cluster.start()
            break
        except (DaemonError, NamespaceError, subprocess.SubprocessError, TimeoutError) as problem:
            cluster.close()
            if not left:
                raise
            print(f"the test cluster did not start, trying again: {problem}")
            cluster = Cluster(config)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(session_cluster: Cluster) -> Cluster:
    """The cluster as new: no jobs, all hosts idle, the first configuration."""
    session_cluster.reset()
    return session_cluster


@pytest.fixture
def user(cluster: Cluster) -> Iterator[FsdpqUser]:
    """Alice on the login node, in a fresh folder."""
    alice = FsdpqUser(cluster)
    yield alice
    alice.close()
