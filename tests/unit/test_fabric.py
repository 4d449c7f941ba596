"""What NCCL's lines say of the network: prefixes, facts of a process, hosts, the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.fabric.collect import Collector
from orchestrator.fabric.diagnosis import Diagnosis, broken
from orchestrator.fabric.lines import read
from orchestrator.fabric.network import Process
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.text import describe
from orchestrator.fabric.verdict import judge

IB = Promise(kind="infiniband", networks=("IB", "IBext*"), hcas=8, gdr=True, site="here")
EIGHT = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(8))


def collected(*lines: str) -> Collector:
    collector = Collector()
    for line in lines:
        collector.take(line, file="job.log")
    return collector


def diagnosed(*lines: str, promise: Promise | None = IB, nodes: int | None = 2) -> Diagnosis:
    found = collected(*lines)
    processes = found.processes()
    return judge(processes, found.placed(processes), promise, nodes=nodes)


def process(*messages: str) -> Process:
    (found,) = collected(*(say(message) for message in messages)).processes()
    return found


def say(message: str, host: str = "n1", pid: int = 7, level: str = "INFO") -> str:
    return f"{host}:{pid}:{pid} [0] NCCL {level} {message}"


def good(host: str, pid: int = 7, hcas: str = EIGHT, gdr: str = "/GDRDMA") -> list[str]:
    return [
        say(f"NET/IB : Using {hcas} [RO]; OOB eth0:10.0.0.1<0>", host, pid),
        say("Using network IB", host, pid),
        say(f"Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0{gdr}", host, pid),
    ]


# --- lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "rank", "message"),
    [
        ("n1:7:8 [0] NCCL INFO Using network IB", "n1", None, "Using network IB"),
        (" 3: [rank5]: n1:7:8 [-1] NCCL WARN x", "n1", 5, "x"),
        ("[default0]:\x1b[31mn1:7:8 [0] transport.cc:9 NCCL WARN x\x1b[0m", "n1", None, "x"),
        ("[2026-03-13 22:26:02] n-1.x.y:7:8 [0] a/b.cc:9 NCCL WARN x\r", "n-1.x.y", None, "x"),
        ("n1:7:8 [0] 12.5 initTransports:88 NCCL TRACE x", "n1", None, "x"),
        ("NCCL INFO Using network IB", "", None, "Using network IB"),
        ("transport/net_ib.cc:818 NCCL WARN x", "", None, "x"),
    ],
)
def test_prefixes(text: str, host: str, rank: int | None, message: str) -> None:
    (line,) = read(text)
    assert (line.host, line.rank, line.message) == (host, rank, message)


def test_the_time_of_a_line_is_read_with_its_zone() -> None:
    (line,) = read("2026-03-13T22:26:02.5+01:00 n1:7:8 [0] NCCL WARN x")
    assert line.at == 1773437162.5


def test_two_writers_of_one_line() -> None:
    torn, whole = read("n1:7:8 [0] NCCL INFO Using netwn2:9:9 [1] NCCL INFO Using network IB")
    assert (torn.host, torn.whole) == ("n1", False)
    assert (whole.message, whole.first) == ("Using network IB", False)


# --- one process ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "gdr"),
    [
        ("Channel 08/0 : 7[7] -> 15[7] [send] via NET/IB/8/GDRDMA", True),
        ("Channel 08/0 : 7[7] -> 15[7] [send] via NET/IB/8/GDRDMA(PCI)", True),
        ("Channel 08/0 : 7[7] -> 15[7] [receive] via NET/IB/8(3)/GDRDMA/Shared", True),
        ("Channel 08/0 : 7[7] -> 15[7] [send] via NET/AWS Libfabric/8/GDRDMA", True),
        ("Channel 08 : 7[b000] -> 15[b000] [send] via NET/IBext/8/GDRDMA", True),
        ("Ring 08 : 7 -> 15 [send] via NET/IB/8", False),
        ("Channel 08/0 : 7[7] -> 15[7] [send] via NET/IB/8/Shared", False),
        ("Channel 08/0 : 7[7] -> 6[6] via P2P/CUMEM", None),
        ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", None),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", False),
        ("DMA-BUF is available on GPU device 0", None),
        ("GPU Direct RDMA Enabled for GPU 1b000 / HCA 0 (distance 3 <= 4), read 1", True),
        ("GPU Direct RDMA Disabled for GPU 3 / HCA 0 (distance 7 > 4)", False),
    ],
)
def test_proof_of_gpudirect(line: str, gdr: bool | None) -> None:
    assert process("Using network IB", line).has_gdr is gdr


def test_a_channel_counts_more_than_what_an_hca_could_do() -> None:
    lines = ("NET/IB : GPU Direct RDMA Disabled for HCA 1 'x'",)
    channel = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
    assert process("Using network IB", *lines, channel).has_gdr is True


@pytest.mark.parametrize(
    ("messages", "network"),
    [
        (["Using network IBext_v8"], "IBext_v8"),
        (["Assigned NET plugin AWS Libfabric to comm"], "AWS Libfabric"),
        (["Initialized NET plugin IB"], "IB"),
        (["Using network IB", "Using network Socket"], "Socket"),
        (["Using network gIB"], "gIB"),
        (["Assigned GIN plugin GIN_IB to comm"], ""),
        (["NET/Socket : Using [0]eth0:10.0.0.1<0>"], "Socket"),
        (["NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>"], ""),
    ],
)
def test_the_network(messages: list[str], network: str) -> None:
    assert process(*messages).network == network


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE", {"mlx5_0:1": "IB", "mlx5_1:1": "RoCE"}),
        ("[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}", {"mlx5_0:1": "IB", "mlx5_1:1": "IB"}),
        ("[0]mlx5_0:1:0:1/IB", {"mlx5_0:1": "IB"}),
        ("", {}),
    ],
)
def test_the_hcas(devices: str, names: dict[str, str]) -> None:
    found = process(f"NET/IB : Using {devices} [RO]; OOB eth0:10.0.0.1<0>")
    assert found.hcas == names


def test_the_rank_is_that_of_the_largest_communicator() -> None:
    small = "comm 0x7f1 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
    large = "comm 0x7f0 rank 9 nRanks 16 nNodes 2 localRanks 8 localRank 1 MNNVL 0"
    found = process(large, small)
    assert (found.rank, found.nodes) == (9, 2)


def test_libfabric_and_its_interfaces() -> None:
    found = process("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)")
    assert (found.provider, found.nics) == ("efa", 4)


# --- the verdict ------------------------------------------------------------------------------


def test_as_promised() -> None:
    found = diagnosed(*good("n1"), *good("n2"))
    assert (found.verdict, found.hcas, found.gdr, found.channels) == ("ok", 8, True, (2, 2))
    assert broken(found) is None


def test_a_host_with_fewer_hcas_is_named_and_so_is_what_it_lacks() -> None:
    seven = EIGHT.replace(" [4]mlx5_4:1/IB", "")
    for promise in (IB, None):  # without a profile one host is compared with the others
        found = diagnosed(*good("n1"), *good("n2", hcas=seven), *good("n3"), promise=promise)
        assert (found.verdict, found.hcas, found.suspects) == ("degraded", 7, ("n2",))
        assert found.cause
        assert (found.cause["kind"], found.cause["host"]) == ("fewer_hcas", "n2")
        assert "mlx5_4:1" in found.cause["what"]
        assert broken(found)


def test_fewer_hcas_everywhere_are_told_and_break_no_promise() -> None:
    found = diagnosed(*good("n1", hcas="[0]mlx5_0:1/IB"), *good("n2", hcas="[0]mlx5_0:1/IB"))
    assert (found.verdict, found.suspects) == ("degraded", ())
    assert broken(found) is None


def test_hcas_that_each_process_has_its_own_of_are_counted_together() -> None:
    own = [line for n in range(8) for line in good("n1", pid=10 + n, hcas=f"[0]mlx5_{n}:1/IB")]
    assert diagnosed(*own).hcas == 8


def test_sockets_on_an_infiniband_site() -> None:
    lines = [say("NET/IB : No device found.", h) for h in ("n1", "n2")]
    lines += [say("Using network Socket", h) for h in ("n1", "n2")]
    found = diagnosed(*lines)
    assert (found.verdict, found.suspects) == ("socket_fallback", ())
    assert found.cause
    assert found.cause["kind"] == "no_ib_device"
    assert "here has infiniband" in found.cause["what"]
    one = diagnosed(*lines[:1], *lines[2:3], *good("n2"))
    assert (one.verdict, one.suspects) == ("socket_fallback", ("n1",))


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "ib_disabled"),
        ("NCCL_IB_DISABLE set by environment to 0.", "no_ib_device"),
        ("NCCL_NET set by environment to Socket.", "sockets_forced"),
        ("NCCL_IB_HCA set to mlx5_9", "hca_filter"),
    ],
)
def test_why_sockets(env: str, kind: str) -> None:
    found = diagnosed(say(env), say("NET/IB : No device found."), say("Using network Socket"))
    assert found.cause
    assert found.cause["kind"] == kind


def test_why_sockets_on_efa() -> None:
    efa = Promise(kind="efa", networks=("AWS Libfabric",))
    lines = [say("NET/Plugin: Could not find: libnccl-net.so"), say("Using network Socket")]
    found = diagnosed(*lines, promise=efa)
    assert found.cause
    assert found.cause["kind"] == "plugin_missing"
    libfabric = (
        "libfabric:85:1::core:core:fi_getinfo():1<warn> fi_getinfo: provider efa output empty"
    )
    found = diagnosed(*lines, f"{libfabric} list", promise=efa)
    assert (found.verdict, (found.cause or {})["kind"]) == (
        "socket_fallback",
        "efa_provider_missing",
    )


@pytest.mark.parametrize("kind", ["ethernet", "none"])
def test_sockets_are_right_where_there_is_nothing_else(kind: str) -> None:
    found = diagnosed(say("Using network Socket"), promise=Promise(kind=kind))
    assert (found.verdict, found.cause) == ("ok", None)


def test_one_node_needs_no_network() -> None:
    comm = "comm 0x7f rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"
    assert diagnosed(say("Using network Socket"), say(comm), nodes=None).verdict == "ok"
    assert diagnosed(say("Using network Socket"), nodes=1).verdict == "ok"


def test_no_gpudirect_on_some_connections_names_the_host() -> None:
    found = diagnosed(*good("n1"), *good("n2", gdr=""), *good("n3"))
    assert (found.verdict, found.gdr, found.suspects) == ("no_gdr", False, ("n2",))
    assert "0 of 1 connections" in (found.cause or {})["what"]


def test_no_gpudirect_is_no_fault_where_none_is_promised() -> None:
    promise = Promise(kind="infiniband", gdr=False)
    assert diagnosed(*good("n1", gdr=""), promise=promise).verdict == "ok"


def test_another_network_than_the_sites() -> None:
    efa = Promise(kind="efa", networks=("AWS Libfabric",))
    found = diagnosed(*good("n1"), promise=efa)
    assert (found.verdict, (found.cause or {})["kind"]) == ("degraded", "other_network")
    assert diagnosed(say("Using network IBext_v8"), promise=IB).verdict == "ok"


def test_an_error_and_what_is_wrong_besides() -> None:
    warn = say("NET/IB : Got async event : port error", "n2", level="WARN")
    found = diagnosed(*good("n1", gdr=""), *good("n2", gdr=""), warn)
    assert (found.verdict, found.fabric) == ("failed", "no_gdr")
    assert (found.cause or {})["host"] == "n2"
    text = describe(found)
    assert text.startswith("failed: n2: the InfiniBand adapter reports: port error")
    assert "besides, no_gdr: traffic of n1, n2" in text


def test_a_warning_that_nobody_knows_is_no_failure() -> None:
    warn = say('Missing "iommu=pt" from kernel command line', level="WARN")
    found = diagnosed(*good("n1"), warn)
    assert found.verdict == "ok"
    assert [clue.finding.kind for clue in found.clues] == ["nccl_warn"]
    back = say("NET/IB : mlx5_0:1 Got async event : port active", level="WARN")
    assert diagnosed(*good("n1"), back).verdict == "ok"


def test_the_earliest_error_by_its_clock_whatever_file_it_is_in() -> None:
    collector = Collector()
    late = "[2026-03-13 22:26:09] n1:7:8 [0] a.cc:1 NCCL WARN Call to ibv_open_device failed"
    early = late.replace(":09]", ":02]").replace("n1:", "n2:")
    collector.take(late, file="a.log")
    collector.take(early, file="b.log")
    assert [clue.finding.node for clue in collector.placed(collector.processes())] == ["n2", "n1"]


def test_nothing_is_known() -> None:
    found = diagnosed("step 1 loss 2.0")
    assert (found.verdict, found.cause, found.network) == ("unknown", None, "")
    assert found.to_json()["network"] is None


def test_a_promise_survives_json() -> None:
    assert Promise.from_json(IB.to_json()) == IB
    assert Promise.from_json({"kind": 3}) is None
    odd = Promise.from_json({"kind": "efa", "networks": [1], "hcas": True, "gdr": 1})
    assert odd == Promise(kind="efa")


def test_the_shape_that_others_rely_on(tmp_path: Path) -> None:
    told = diagnosed(*good("n1", gdr="")).to_json()
    first = ["verdict", "network", "hcas", "gdr", "nccl_version", "cause"]
    assert list(told)[:6] == first
    assert {"kind", "rank", "host", "line", "advice"} <= told["cause"].keys()
