"""What `fsdpq diagnose` says of logs of NCCL 2.28.9 on H200: two hosts with a cable, and one.

They are of `python -m tests.gpu.eight --only recover`; see tests/gpu/RESULTS.md.
"""

from pathlib import Path

import pytest

from .test_diagnose import told

LOGS = Path(__file__).parents[1] / "data" / "nccl" / "h200-2.28.9"
ETHERNET = """
name: cable
description: two hosts with a cable
source: [these logs]
checked: 2026-11-30
confidence: own
gpu: {model: H200, per_node: 1, request: gres}
cpus_per_node: 16
default_partition: all
partitions: {all: {}}
fabric: {kind: ethernet}
"""


@pytest.fixture
def ethernet(tmp_path: Path) -> str:
    """A site whose nodes have nothing but a cable."""
    path = tmp_path / "cable.yaml"
    path.write_text(ETHERNET)
    return str(path)


def test_sockets_between_two_hosts() -> None:
    found = told(str(LOGS / "two-hosts"))
    assert (found["verdict"], found["network"]) == ("socket_fallback", "Socket")
    assert found["channels"] == {"between_nodes": 8, "gdr": 0}
    assert [(one["host"], one["ranks"]) for one in found["hosts"]] == [("gpu1", [0]), ("gpu2", [1])]
    assert found["nccl_version"] == "2.28.9"


def test_they_are_named_by_their_first_line() -> None:
    cause = told(str(LOGS / "two-hosts"))["cause"]
    assert (cause["kind"], cause["line_number"]) == ("no_ib_device", 9)
    assert cause["line"].endswith("NET/IB : No device found.")


def test_on_a_site_without_another_network_they_are_right(ethernet: str) -> None:
    assert told(str(LOGS / "two-hosts"), "--site", ethernet)["verdict"] == "ok"


def test_one_host_alone_uses_no_network() -> None:
    found = told(str(LOGS / "one-host"))
    assert (found["verdict"], found["channels"]["between_nodes"]) == ("ok", 0)
    assert [one["host"] for one in found["hosts"]] == ["gpu1"]
