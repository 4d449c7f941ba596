"""A cluster whose switches do not go with the names of its hosts: n1 and n3, n2 and n4."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nodelist import expand

from .cluster import Cluster, ClusterConfig, SlurmVersion, Topology
from .conftest import started
from .user import SITE, FsdpqUser

START_S = 90
TREE = Topology(
    plugin="tree",
    lines=(
        "SwitchName=s0 Nodes=n[1,3]",
        "SwitchName=s1 Nodes=n[2,4]",
        "SwitchName=s2 Nodes=n5",
        "SwitchName=top Switches=s[0-2]",
    ),
)
BLOCKS = Topology(
    plugin="block", lines=("BlockName=b0 Nodes=n[1,3]", "BlockName=b1 Nodes=n[2,4]", "BlockSizes=2")
)


@pytest.fixture(scope="module")
def wired(real_slurm: SlurmVersion) -> Iterator[Cluster]:
    with started(ClusterConfig(version=real_slurm, topology=TREE)) as cluster:
        yield cluster


@pytest.fixture
def user(wired: Cluster) -> Iterator[FsdpqUser]:
    """Alice on that cluster."""
    wired.reset()
    alice = FsdpqUser(wired)
    yield alice
    alice.close()


def site(user: FsdpqUser, topology: dict[str, Any]) -> str:
    """Return a profile of this cluster that says how its network is made."""
    path = user.home / "site.yaml"
    fabric = {"kind": "ethernet", "topology": topology}
    own = {"extends": str(SITE), "name": "wired", "fabric": fabric}
    user.cluster.run(["sh", "-c", 'cat > "$0"', str(path)], input=json.dumps(own))
    return str(path)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def hosts(user: FsdpqUser, name: str, **keys: Any) -> tuple[dict[str, Any], list[str]]:
    """Run a job to its end; return its start and the host of each rank, by its own word."""
    script = user.home / "where.py"
    text = (
        "import os, pathlib, socket\n"
        "folder = pathlib.Path(os.environ['FSDPQ_ATTEMPT_DIR'])\n"
        "(folder / f'at-{os.environ[\"RANK\"]}').write_text(socket.gethostname())\n"
    )
    user.cluster.run(["sh", "-c", 'cat > "$0"', str(script)], input=text)
    run = user.submit(name, script=str(script), **keys)
    user.cluster.wait_for(run.finished.exists, START_S, f"{name} finishes")
    attempt = run.attempt(1)
    start = read(attempt.start)
    count = len(expand(start["nodes"])) * 2
    found = [(attempt.root / f"at-{rank}").read_text() for rank in range(count)]
    # All that is named by a number names the same host.
    for number, host in enumerate(found[::2]):
        assert read(attempt.preflight / f"node-{number}.json")["node"] == host
        assert (attempt.root / f"node-{number}.exit").read_text() == "0\n"
        assert any((attempt.logs / f"node-{number}").iterdir())
    return start, found


def test_ranks_follow_the_switches(user: FsdpqUser) -> None:
    start, found = hosts(user, "four", nodes=4)
    assert found == ["n1", "n1", "n3", "n3", "n2", "n2", "n4", "n4"]
    assert (start["nodes"], start["switches"]) == ("n[1,3,2,4]", ["s0", "s1"])
    status = user.status("four")
    assert status["attempts"][0]["switches"] == ["s0", "s1"]
    assert status["attempts"][0]["nodes"] == "n[1,3,2,4]"


def test_a_job_that_asks_for_one_switch_gets_one(user: FsdpqUser) -> None:
    """One that does not ask starts at once on what is free: n2 and n3, on two switches."""
    cluster = user.cluster
    topology = {"kind": "tree", "nodes_per_switch": 2, "switches": True}
    alone = ["--exclusive", "--output=/dev/null", "--partition=prod"]
    first = cluster.sbatch([*alone, "--nodelist=n1"], "sleep 600")
    last = cluster.sbatch([*alone, "--nodelist=n4"], "sleep 600")
    for job in (first, last):
        cluster.wait_for_state(job, "RUNNING")
    keys = {"site": site(user, topology), "partition": "prod"}
    hasty = user.count("hasty", [5, 0.1, 5], **keys)
    cluster.wait_for(hasty.finished.exists, START_S, "the other one finishes")
    assert read(hasty.attempt(1).start)["switches"] == ["s1", "s0"]
    run = user.count("one", [5, 0.1, 5], switches="1@10:00", **keys)
    cluster.wait_for(lambda: "may wait for that" in user.status("one")["next"], 60, "it waits")
    cluster.run(["scancel", str(last)], user="root")
    cluster.wait_for(run.finished.exists, START_S, "it finishes")
    start = read(run.attempt(1).start)
    assert (start["nodes"], start["switches"]) == ("n[2,4]", ["s1"])


def test_an_allocation_over_more_switches_than_it_needs_is_shown(user: FsdpqUser) -> None:
    topology = {"kind": "tree", "nodes_per_switch": 2}
    keys = {"site": site(user, topology), "exclude": ["n3", "n4"]}
    start, found = hosts(user, "spread", **keys)
    assert found == ["n1", "n1", "n2", "n2"]
    assert start["switches"] == ["s0", "s1"]
    said = "runs over 2 switches or blocks (s0, s1), and 1 would hold its nodes"
    assert user.status("spread")["spread"] == said


def test_ranks_follow_the_blocks(real_slurm: SlurmVersion) -> None:
    if real_slurm.release < (24, 11):
        pytest.skip("Slurm 22.05 has no topology/block")
    with started(ClusterConfig(version=real_slurm, topology=BLOCKS)) as cluster:
        alice = FsdpqUser(cluster)
        start, found = hosts(alice, "blocks", nodes=4)
        assert found == ["n1", "n1", "n3", "n3", "n2", "n2", "n4", "n4"]
        assert (start["nodes"], start["switches"]) == ("n[1,3,2,4]", ["b0", "b1"])
