"""The bandwidth check of the pre-flight with real ranks: three nodes that are one machine."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bandwidth import Record
from orchestrator.preflight import bandwidth
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    path = tmp_path / "attempts" / "1"
    path.mkdir(parents=True)
    return path


def environment(attempt: Path, node: int, nodes: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "FSDPQ_ATTEMPT_DIR": str(attempt),
        "FSDPQ_HEAD": "127.0.0.1",
        "FSDPQ_PORT": str(port),
        "SLURM_NODEID": str(node),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURMD_NODENAME": f"n{node + 1}",
    }


def check(attempt: Path, *, came: int, nodes: int, **changes: Any) -> list[Findings]:
    """Let the first ``came`` of the nodes check themselves at the same time."""
    # The sweep takes the port after the next one.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] - 2
    expected = Expected(checks=("bandwidth",), workers=1, bandwidth_ratio=0.01, **changes)

    def one(node: int) -> Findings:
        return bandwidth.check_bandwidth(
            expected,
            host=f"n{node + 1}",
            temporary=str(attempt.parents[1]),
            environment=environment(attempt, node, nodes, port),
        )

    with ThreadPoolExecutor(came) as pool:
        return list(pool.map(one, range(came)))


def test_all_nodes_measure_together_and_pair_by_pair(attempt: Path) -> None:
    found = check(attempt, came=3, nodes=3, bandwidth_timeout_s=90)
    assert found == [Findings()] * 3
    record = Record.from_json(json.loads((attempt / "bandwidth.json").read_text()))
    assert (record.complete, record.nodes, record.ranks) == (True, ("n1", "n2", "n3"), 3)
    assert {m.collective for m in record.measurements if m.size == 1 << 20} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert all(m.bus_gbs > 0 for m in record.measurements)
    assert sorted((p.a, p.b) for p in record.pairs) == [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
    assert (record.rounds, record.rounds_total) == (3, 3)
    assert [path.name for path in attempt.parents[1].iterdir()] == ["attempts"]


def test_a_node_that_does_not_come_stops_nobody(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "_IMPORT_S", 20)
    found = check(attempt, came=1, nodes=2, timeout_s=1, bandwidth_timeout_s=5)
    assert found[0].problems == ()
    assert "bandwidth: not measured" in found[0].notes[0]
