"""However its maker ends, the test cluster leaves nothing on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import SlurmVersion
from .cluster.mounts import REPOSITORY
from .cluster.workdir import PARENT, PREFIX, remove_stale_folders

DAEMONS = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"}
START_AND_WAIT = """
import time
from tests.slurm.cluster import Cluster
with Cluster() as cluster:
    job = cluster.popen(["srun", "--nodes=2", "sleep", "1000"])
    print(cluster.work, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def other_maker(real_slurm: SlurmVersion) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a cluster of its own, and that cluster's folder."""
    argv = [sys.executable, "-c", START_AND_WAIT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as maker:
        assert maker.stdout
        yield maker, Path(maker.stdout.readline().strip())
        maker.kill()


def test_kill_9_leaves_nothing(other_maker: tuple[subprocess.Popen[str], Path]) -> None:
    maker, work = other_maker
    before = processes_of(work)
    assert set(before.values()) >= DAEMONS
    networks = {network(pid) for pid in before} - {network(os.getpid())}
    maker.kill()
    deadline = time.monotonic() + 20
    while (left := processes_of(work)) or work.exists():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    processes = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    assert not networks & {network(pid) for pid in processes}


def processes_of(work: Path) -> dict[int, str]:
    """Processes, by id, that see a mount of the cluster or name its folder; with their names."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "mountinfo").read_text() + (folder / "cmdline").read_text()
            if str(work) in text:
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        except OSError:  # ended while being looked at
            continue
    return found


def network(pid: int) -> str:
    """The network namespace of a process; empty for one that has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def test_folder_of_a_killed_maker_is_removed(real_slurm: SlurmVersion) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = PARENT / f"{PREFIX}-{ended.pid}-1-test"
    folder.mkdir()
    remove_stale_folders()
    assert not folder.exists()
