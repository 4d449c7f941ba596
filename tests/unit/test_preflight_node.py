"""Which network adapters and which storage make a node unfit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.preflight import hcas, storage, writing
from orchestrator.preflight.children import Output
from orchestrator.preflight.findings import Findings
from orchestrator.preflight.storage import Room

from .gpu_health import FABRIC, expected, whats

# --- HCAs -------------------------------------------------------------------------------------


def port(root: Path, hca: str, **changes: str) -> None:
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        **changes,
    }
    folder = root / hca / "ports" / "1"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X)"}


def judged(root: Path, **changes: Any) -> Findings:
    return hcas.judge(hcas.read_ports(root), expected(**{**FABRIC, **changes}))


def test_a_port_that_is_down_and_not_needed_is_well(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", **DOWN)
    port(tmp_path, "mlx5_2")
    port(tmp_path, "mlx5_bond_0", link_layer="Ethernet", rate="25 Gb/sec (1X EDR)")
    assert judged(tmp_path) == Findings()


def test_too_few_hcas_are_named(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", **DOWN)
    [problem] = judged(tmp_path).problems
    assert (problem.check, problem.kind) == ("hcas", "node")
    assert "1 of 2 HCAs are active at 400 Gbit/s" in problem.what
    assert "mlx5_1 port 1 is down at 10 Gbit/s" in problem.what


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", rate="100 Gb/sec (4X EDR)")
    assert "mlx5_1 port 1 is active at 100 Gbit/s" in whats(judged(tmp_path))[0]
    assert judged(tmp_path, hca_gbps=None) == Findings()


def test_where_the_profile_gives_no_number_one_good_port_will_do(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", **DOWN)
    assert "no port of the infiniband network" in whats(judged(tmp_path, hcas=None))[0]
    port(tmp_path, "mlx5_1")
    assert judged(tmp_path, hcas=None) == Findings()


def test_no_adapter_at_all_may_be_a_container(tmp_path: Path) -> None:
    assert judged(tmp_path / "missing", hcas=None).problems == ()
    assert judged(tmp_path / "missing", hcas=None).notes
    assert "0 of 2 HCAs" in whats(judged(tmp_path / "missing"))[0]


def test_a_port_without_a_subnet_manager_is_noted(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", state="2: INIT")
    assert "subnet manager" in judged(tmp_path, hcas=1).notes[0]


@pytest.mark.parametrize("kind", ["ethernet", "slingshot", "none", "omnipath"])
def test_networks_without_hcas_are_not_asked_for(kind: str, tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", **DOWN)
    assert judged(tmp_path, fabric=kind) == Findings()


# --- storage ----------------------------------------------------------------------------------


def wrote(**said: Any) -> Findings:
    return storage.judge(Output(0, f"a warning\n{json.dumps(said)}\n"), path=Path("/c"))


def test_a_write_that_works(tmp_path: Path) -> None:
    found = writing.write_test(tmp_path, node="0")
    assert found["free"] > 0
    assert (found["newest"], abs(found["skew_s"]) < 60) == (None, True)
    assert list(tmp_path.iterdir()) == []
    assert wrote(**found) == Findings()


def test_a_write_that_fails_is_the_storages_fault(tmp_path: Path) -> None:
    found = writing.write_test(tmp_path / "missing", node="0")
    assert found == {"error": "cannot be written: No such file or directory"}
    [problem] = wrote(**found).problems
    assert (problem.check, problem.kind) == ("storage", "storage")
    assert problem.what == "/c: cannot be written: No such file or directory"


def test_a_write_that_hangs() -> None:
    [problem] = storage.judge(Output(None, ""), path=Path("/c")).problems
    assert problem.kind == "storage"
    assert "not written in time" in problem.what


def test_a_write_test_that_breaks_is_a_note() -> None:
    found = storage.judge(Output(1, "Traceback: boom"), path=Path("/c"))
    assert found.problems == ()
    assert "boom" in found.notes[0]


def test_a_checkpoint_must_fit() -> None:
    gib = 1 << 30
    assert "110.0 GiB are free" in whats(wrote(free=110 * gib, newest=100 * gib, skew_s=0.0))[0]
    assert wrote(free=121 * gib, newest=100 * gib, skew_s=0.0) == Findings()


def test_clocks_that_differ_are_noted() -> None:
    found = wrote(free=1, newest=None, skew_s=-90.4)
    assert (found.problems, len(found.notes)) == ((), 1)
    assert "-90 s" in found.notes[0]


def test_rooms() -> None:
    mib = 1 << 20
    found = storage.judge_rooms(Room("/tmp", mib), Room("/dev/shm", 64 * mib), Room("/x", None))
    assert whats(found) == ["/tmp: 1 MiB are free"]
    assert found.problems[0].kind == "node"
    assert found.notes == ("/dev/shm: only 64 MiB are free",)
