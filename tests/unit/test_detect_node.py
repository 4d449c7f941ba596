"""What the probe prints, and what a profile makes of it."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from typing import Any

import pytest

from orchestrator.detect.node import Node, nodes
from orchestrator.detect.probing import Request, options
from orchestrator.launchplan import script
from orchestrator.preflight.hcas import Port
from orchestrator.profile import SiteProfile

from .builders import site
from .clusters import LOGIN, gpu_nodes, partition, profile, small

TOPOLOGY = """\
\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-55\t0\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t56-111\t1\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPXB\tSYS\t X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
H100 = f"""\
Welcome to the cluster
@@ host
gpu07
@@ kernel
Linux 5.14.0-427.13.1.el9_4.x86_64 x86_64
@@ gpus
NVIDIA H100 80GB HBM3, 81559 MiB
NVIDIA H100 80GB HBM3, 81559 MiB
@@ topology
{TOPOLOGY}
@@ driver
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Mar  2 2024
@@ peermem
/sys/module/nvidia_peermem/version
@@ ports
mlx5_0|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand
mlx5_1|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand
mlx5_2|1|1: DOWN|3: Disabled|400 Gb/sec (4X NDR)|InfiniBand
mlx5_3|1|4: ACTIVE|5: LinkUp|100 Gb/sec (4X EDR)|InfiniBand
mlx5_bond_0|1|4: ACTIVE|5: LinkUp|25 Gb/sec (1X EDR)|Ethernet
@@ interfaces
eno1 up 25000 MTU 1500
eno2 down -1 MTU 1500
@@ limits
l=64
n=1048576
@@ shm
kib=1056763000
@@ mounts
/tmp=xfs
/scratch=lustre
@@ nccl-conf
# site settings
NCCL_IB_TC=41
@@ vendor
Supermicro
@@ end
"""


def labelled(*texts: str) -> str:
    """Return what srun --label makes of what its tasks print, line by line in turn."""
    lines = [[f"{task}: {line}" for line in text.splitlines()] for task, text in enumerate(texts)]
    longest = max(len(one) for one in lines)
    return "\n".join(one[i] for i in range(longest) for one in lines if i < len(one))


def seen(text: str) -> Node:
    (node,) = nodes(labelled(text))
    return node


def with_node(node: Node, kind: str = "h100") -> SiteProfile:
    return profile(small(partition(), nodes=(gpu_nodes(kind, 2),)), node)


def port(hca: str, layer: str = "infiniband", **changes: Any) -> Port:
    plain = {"port": "1", "state": "active", "phys_state": "linkup", "gbps": 400.0}
    return Port(**{"hca": hca, "layer": layer, **plain, **changes})


# --- reading ----------------------------------------------------------------------------------


def test_a_node_with_everything() -> None:
    node = seen(H100)
    assert (node.host, node.arch) == ("gpu07", "x86_64")
    assert node.gpus == (("H100 80GB HBM3", 81559),) * 2
    assert node.nearest == ("PIX", "PXB")
    assert (node.peermem, node.dmabuf) == (True, False)
    assert [one.hca for one in node.ports] == [
        "mlx5_0",
        "mlx5_1",
        "mlx5_2",
        "mlx5_3",
        "mlx5_bond_0",
    ]
    assert node.limits["l"] == "64"
    assert node.nccl_conf == ("NCCL_IB_TC=41",)


def test_nodes_that_speak_at_once() -> None:
    other = H100.replace("gpu07", "gpu08").replace("4: ACTIVE", "1: DOWN", 1)
    first, second = nodes(labelled(H100, other))
    assert (first.host, second.host) == ("gpu07", "gpu08")
    assert first == seen(H100)
    assert [one.state for one in second.ports][:2] == ["down", "active"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slurmstepd: error: no such file",
        "0: @@ kernel\n0: Linux 6.1 x86_64",
        "0: @@ host\n",
        "0 @@ host\n0 n1",
        "x: @@ host\nx: n1",
    ],
)
def test_what_is_no_answer(text: str) -> None:
    assert nodes(text) == ()


def test_a_bare_node() -> None:
    assert seen("@@ host\nn1\n@@ gpus\nNo devices were found\n@@ ports\na|b\n@@ end") == Node(
        host="n1"
    )


# --- the network ------------------------------------------------------------------------------


def test_the_fabric_of_a_node() -> None:
    found = with_node(seen(H100))
    fabric = found.fabric
    assert (fabric.kind, fabric.rate, fabric.hcas_per_node, fabric.gdr) == (
        "infiniband",
        "NDR400",
        2,
        True,
    )
    source = found.evidence_of("fabric.hcas_per_node").source
    assert "gpu07" in source
    assert "without mlx5_2 (not active)" in source
    assert found.evidence_of("fabric.kind").confidence == "own"
    assert any("ulimit -l" in note for note in found.notes)
    assert any("NCCL_IB_TC=41" in note for note in found.notes)
    assert {path: one.node_local for path, one in found.storage.items()} == {"/tmp": True}


@pytest.mark.parametrize(
    ("ports", "present", "kind", "hcas", "networks"),
    [
        ([port("mlx5_0", "ethernet"), port("mlx5_1", "ethernet")], (), "roce", 2, ("IB*",)),
        ([port("mlx5_0", "ethernet")], ("/usr/local/gib",), "roce", 1, ("gIB",)),
        # A machine in Azure: an Ethernet port beside the InfiniBand ones.
        ([port("mlx5_an0", "ethernet"), port("mlx5_ib0")], (), "infiniband", 1, ("IB*",)),
        (
            [port("rdmap79s0", "unspecified", gbps=100.0)],
            (),
            "efa",
            1,
            ("AWS Libfabric", "Libfabric", "OFI"),
        ),
        ([port("hfi1_0")], (), "omnipath", 1, ()),
        (
            [],
            ("/sys/class/cxi/cxi0", "/sys/class/cxi/cxi1"),
            "slingshot",
            2,
            ("AWS Libfabric", "Libfabric", "OFI"),
        ),
        ([], ("/var/lib/tcpxo",), "tcpxo", None, ("FasTrak*",)),
        ([], ("/var/lib/tcpx",), "tcpx", None, ("GPUDirectTCPX*",)),
        ([port("mlx5_0", state="down")], (), "ethernet", None, ("Socket",)),
        ([], (), "ethernet", None, ("Socket",)),
        # One card with two ports is one HCA.
        ([port("mlx5_0"), port("mlx5_0", port="2")], (), "infiniband", 1, ("IB*",)),
    ],
)
def test_kinds(
    ports: list[Port], present: tuple[str, ...], kind: str, hcas: int | None, networks: Any
) -> None:
    fabric = with_node(Node(host="n1", ports=tuple(ports), present=present)).fabric
    assert (fabric.kind, fabric.hcas_per_node, fabric.names) == (kind, hcas, networks)


@pytest.mark.parametrize(
    ("changes", "gdr"),
    [
        ({"peermem": True}, True),
        ({"dmabuf": True}, True),
        ({}, None),
        ({"peermem": True, "nearest": ("PIX", "SYS")}, None),
        ({"peermem": True, "nearest": ()}, None),
    ],
)
def test_gpudirect_is_promised_only_where_all_of_it_is_there(
    changes: dict[str, Any], gdr: bool | None
) -> None:
    node = Node(host="n1", **{"ports": (port("mlx5_0"),), "nearest": ("PIX", "PXB"), **changes})
    assert with_node(node).fabric.gdr is gdr


@pytest.mark.parametrize(
    ("kernel", "driver", "dmabuf"),
    [
        ("Linux 5.12.0 x86_64", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64", True),
        ("Linux 6.8.0-45 aarch64", "NVRM version: NVIDIA UNIX Open Kernel Module", True),
        ("Linux 5.4.0 x86_64", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64", False),
        ("Linux 6.8.0 x86_64", "NVRM version: NVIDIA UNIX x86_64 Kernel Module", False),
    ],
)
def test_dmabuf(kernel: str, driver: str, dmabuf: bool) -> None:
    assert seen(f"@@ host\nn\n@@ kernel\n{kernel}\n@@ driver\n{driver}").dmabuf is dmabuf


def test_the_login_nodes_own_adapters_are_a_guess() -> None:
    login = dataclasses.replace(LOGIN, ports=(port("mlx5_0"),))
    found = profile(small(partition(), nodes=(gpu_nodes(),)), login=login)
    assert (found.fabric.kind, found.fabric.hcas_per_node) == ("infiniband", None)
    assert found.evidence_of("fabric.kind").confidence == "low"


# --- GPUs and clouds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "model"), [("h100", "H100 80GB HBM3"), ("", "H100 80GB HBM3"), ("fast", "FAST")]
)
def test_the_gpu_itself_knows_its_model(kind: str, model: str) -> None:
    gpu = with_node(seen(H100), kind).gpu
    assert gpu is not None
    assert (gpu.model, gpu.memory_gib, gpu.arch) == (model, 79.6, "x86_64")


@pytest.mark.parametrize(
    ("vendor", "answers", "cloud"),
    [
        ("Amazon EC2 p5.48xlarge", {"aws": "200"}, "aws"),
        ("Google Google Compute Engine", {"gcp": "200"}, "gcp"),
        ("Microsoft Corporation Virtual Machine 7783-7084-3265-9085-8269-3286-77",
         {"azure": "200"}, "azure"),
        # Somebody's own Hyper-V, and a machine whose service does not answer.
        ("Microsoft Corporation Virtual Machine", {"azure": "200"}, "none"),
        ("Amazon EC2 p5.48xlarge", {"aws": "403"}, "none"),
        ("Supermicro", {"aws": "200"}, "none"),
    ],
)  # fmt: skip
def test_clouds(vendor: str, answers: dict[str, str], cloud: str) -> None:
    assert with_node(Node(host="n1", vendor=vendor, answers=answers)).cloud == cloud


# --- the job ----------------------------------------------------------------------------------


def test_the_probe_goes_where_jobs_go() -> None:
    gpu = {"model": "H100", "per_node": 8, "request": "gpus-per-node-typed", "type": "h100"}
    other = {"model": "A100", "per_node": 4, "request": "gres-typed", "type": "a100"}
    here = site(
        gpu=gpu,
        default_qos="normal",
        partitions={
            "gpu": {},
            "old": {"gpu": other, "qos": "q", "constraint": "x", "exclusive": True},
        },
    )
    assert options(here, Request(partition="gpu", account="lab")) == [
        "--partition=gpu", "--account=lab", "--qos=normal", "--gpus-per-node=h100:8",
    ]  # fmt: skip
    assert options(here, Request(partition="old", nodes=2)) == [
        "--partition=old", "--qos=q", "--constraint=x", "--exclusive", "--gres=gpu:a100:4",
    ]  # fmt: skip


def test_the_probe_fits_into_one_argument() -> None:
    """The kernel takes 128 KiB in one."""
    assert len(script.fill("probe.sh.j2")) < 100_000


@pytest.mark.processes
def test_the_probe_runs_anywhere() -> None:
    """On this machine, with nothing of a GPU node."""
    text = script.fill("probe.sh.j2")
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=120, check=True
    )
    node = seen(done.stdout)
    assert node.arch
    assert node.shm_kib
    assert "l" in node.limits
    assert done.stdout.endswith("@@ end\n")


@pytest.mark.processes
def test_the_probe_is_clean() -> None:
    if (shellcheck := shutil.which("shellcheck")) is None:
        pytest.skip("needs shellcheck")
    text = script.fill("probe.sh.j2")
    done = subprocess.run(
        [shellcheck, "--shell=bash", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


def test_a_speed_that_is_not_known_is_left_out() -> None:
    (one,) = nodes("0: @@ host\n0: n1\n0: @@ interfaces\n0: eno2 down -1 MTU 1500\n0: @@ end\n")
    assert one.interfaces == ("eno2 down MTU 1500",)
