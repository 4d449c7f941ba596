"""Lines of NCCL that mean something, and what they mean."""

from __future__ import annotations

from orchestrator.evidence.nccl import NCCL
from orchestrator.evidence.pattern import Pattern
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause

H = "n2:73076:73185 [4]"

# Formats of 2.18 to 2.30.
NCCL_LINES: list[tuple[tuple[Pattern, ...], str, str, Cause, Weight, str, bool]] = [
    # table, line, kind, cause, weight, node, speaks against it
    (
        NCCL,
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 async fatal event :"
        " port error",
        *("port_down", Cause.FABRIC, Weight.ROOT, "n1", True),
    ),
    (
        NCCL,
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table"
        " change",
        *("async_event", Cause.NOTICE, Weight.ECHO, "n1", False),
    ),
    (
        NCCL,
        "n1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got non-fatal async event : CQ error",
        *("async_error", Cause.FABRIC, Weight.OWN, "n1", True),
    ),
    (
        NCCL,
        "n2:1:1 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot"
        " allocate memory",
        *("ibv_create_cq", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with"
        " status=10 opcode=0 len=0 vendor err 136",
        *("wc_error", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        "n2:1:1 [0] net.cc:626 NCCL WARN Failed to initialize any NET plugin",
        *("no_net_plugin", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        "n2:1:1 [0] nccl_ofi_net.c:9 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113."
        " Error: 2 (UNDELIVERABLE). Completed length: 0",
        *("ofi_request", Cause.FABRIC, Weight.MAYBE, "n2", False),
    ),
    (
        NCCL,
        "n1:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        *("port_down", Cause.FABRIC, Weight.ROOT, "n1", True),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n1<37948> with"
        " error 12, opcode 2, len 1, vendor err 129",
        *("wc12", Cause.FABRIC, Weight.MAYBE, "n2", False),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:2000 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000>"
        " with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129",
        *("wc12", Cause.FABRIC, Weight.MAYBE, "n2", False),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with"
        " status=12 opcode=0 len=0 vendor err 129",
        *("wc12", Cause.FABRIC, Weight.MAYBE, "n2", False),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with"
        " status=5 opcode=0 len=0 vendor err 249",
        *("wc5", Cause.FABRIC, Weight.ECHO, "n2", False),
    ),
    (
        NCCL,
        f"{H} transport/net_ib.cc:818 NCCL WARN NET/IB : Got completion with error 4, opcode 8983,"
        " len 0, vendor err 81",
        *("loc_prot_err_acs_or_gdr", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        "[2026-03-13 22:26:02] n2:1001:1001 [5] ibvwrap.c:262 NCCL WARN Call"
        " to ibv_modify_qp failed"
        " with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR",
        *("ibv_modify_qp", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        "n2:1:1 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot"
        " allocate memory",
        *("ibv_reg_mr", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        "n2:1:1 [0] misc/ibvwrap.cc:288 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error"
        " Operation not supported",
        *("dmabuf", Cause.FABRIC, Weight.MAYBE, "n2", False),
    ),
    (
        NCCL,
        "n2:1:1 [0] misc/ibvwrap.cc:99 NCCL WARN Call to ibv_open_device failed",
        *("ib_call", Cause.FABRIC, Weight.OWN, "n2", True),
    ),
    (
        NCCL,
        "n2:180142:180163 [0] net.cc:626 NCCL WARN Error: network AWS Libfabric not found.",
        *("forced_network_missing", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        f"{H} include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'",
        *("cuda-oom", Cause.GPU_MEMORY, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        f"{H} misc/strongstream.cc:4 NCCL WARN Cuda failure 214 'uncorrectable ECC error"
        " encountered'",
        *("gpu-ecc", Cause.GPU_FAILURE, Weight.ROOT, "n2", True),
    ),
    (
        NCCL,
        f"{H} bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        *("interface", Cause.FABRIC, Weight.OWN, "n2", False),
    ),
    (
        NCCL,
        f"{H} misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n1<41>",
        *("peer_closed", Cause.FABRIC, Weight.ECHO, "n2", False),
    ),
]
