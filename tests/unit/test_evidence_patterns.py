"""What single messages mean. Sources stand beside the patterns."""

from __future__ import annotations

import pytest

from orchestrator.evidence import errors, scan
from orchestrator.evidence.batch import BATCH, HINT
from orchestrator.evidence.nccl import NCCL
from orchestrator.evidence.pattern import Pattern
from orchestrator.evidence.stderr import STDERR
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

OOM_NEW = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB. GPU 0 has a total capacity"
    " of 7.63 GiB of which 91.25 MiB is free. Including non-PyTorch memory, this process has 7.52"
    " GiB memory in use. Of the allocated memory 7.29 GiB is allocated by PyTorch"
)
OOM_OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity;"
    " 14.32 GiB already allocated; 1.10 GiB free; 14.50 GiB reserved in total by PyTorch)"
)
PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"

EXCEPTIONS: list[tuple[str, str, Cause, Weight, bool]] = [
    # text, kind, cause, weight, speaks against the node
    (
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        *("gpu-ecc", Cause.GPU_FAILURE, Weight.ROOT, True),
    ),
    (
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\nCUDA"
        " kernel errors might be asynchronously reported",
        *("nvlink", Cause.GPU_FAILURE, Weight.ROOT, True),
    ),
    (
        "RuntimeError: Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.",
        *("gpu-lost", Cause.GPU_FAILURE, Weight.ROOT, True),
    ),
    (
        "RuntimeError: No CUDA GPUs are available",
        *("no-gpu", Cause.GPU_FAILURE, Weight.ROOT, True),
    ),
    (
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        *("no-gpu", Cause.GPU_FAILURE, Weight.ROOT, True),
    ),
    (
        "AcceleratorError: CUDA error: invalid device ordinal",
        *("gpu-number", Cause.CONFIGURATION, Weight.OWN, False),
    ),
    (
        "AssertionError: Torch not compiled with CUDA enabled",
        *("no-cuda", Cause.CONFIGURATION, Weight.OWN, False),
    ),
    (OOM_NEW, "cuda-oom", Cause.GPU_MEMORY, Weight.OWN, False),
    (OOM_OLD, "cuda-oom", Cause.GPU_MEMORY, Weight.OWN, False),
    (
        "RuntimeError: CUDA error: out of memory",
        *("cuda-oom", Cause.GPU_MEMORY, Weight.OWN, False),
    ),
    (
        "DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version"
        " 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure"
        " 2 'out of memory'",
        *("cuda-oom", Cause.GPU_MEMORY, Weight.OWN, False),
    ),
    (
        "RuntimeError: CUDA error: device-side assert triggered",
        *("cuda-assert", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "AcceleratorError: CUDA error: an illegal memory access was encountered",
        *("cuda-kernel", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure"
        " 719 'unspecified launch failure'",
        *("cuda-kernel", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "OSError: [Errno 28] No space left on device: '/scratch/run/checkpoints/step-8.tmp'",
        *("disk-full", Cause.DISK_FULL, Weight.ROOT, False),
    ),
    (
        "CheckpointException: CheckpointException ranks:dict_keys([1])\nTraceback (most recent call"
        " last): (RANK 1)\n  File x\nOSError: [Errno 122] Disk quota exceeded",
        *("quota", Cause.DISK_FULL, Weight.ROOT, False),
    ),
    # Not the disk: the kernel has no more watches.
    (
        "OSError: [Errno 28] inotify watch limit reached",
        *("exception", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "RuntimeError: unable to write to file </torch_1_2>: No space left on"
        " device (28): /torch_1",
        *("shared-memory", Cause.OUT_OF_MEMORY, Weight.OWN, False),
    ),
    (
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible"
        " that dataloader's workers are out of shared memory.",
        *("shared-memory", Cause.OUT_OF_MEMORY, Weight.OWN, False),
    ),
    (
        "RuntimeError: DataLoader worker (pid(s) 71, 72) exited unexpectedly",
        *("loader-killed", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    ("MemoryError", "host-oom", Cause.OUT_OF_MEMORY, Weight.OWN, False),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't"
        " allocate memory: you tried to allocate 99999999999999 bytes.",
        *("host-oom", Cause.OUT_OF_MEMORY, Weight.OWN, False),
    ),
    (
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.0.step.",
        *("checkpoint-keys", Cause.CHECKPOINT, Weight.OWN, False),
    ),
    (
        "RuntimeError: Error(s) in loading state_dict for Llama:\n\tsize"
        " mismatch for lm_head.weight",
        *("checkpoint-keys", Cause.CHECKPOINT, Weight.OWN, False),
    ),
    (
        "ModuleNotFoundError: No module named 'flash_attn'",
        *("module", Cause.CONFIGURATION, Weight.OWN, False),
    ),
    (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        *("import", Cause.CONFIGURATION, Weight.OWN, False),
    ),
    ("SyntaxError: invalid syntax", "syntax", Cause.CONFIGURATION, Weight.OWN, False),
    ("SpecError: data.text_files: nothing", "spec", Cause.CONFIGURATION, Weight.OWN, False),
    (
        "PermissionError: [Errno 13] Permission denied: '/scratch/x'",
        *("permission", Cause.CONFIGURATION, Weight.OWN, False),
    ),
    (
        "OSError: [Errno 30] Read-only file system: '/scratch/x'",
        *("storage", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "OSError: [Errno 116] Stale file handle",
        *("storage", Cause.WORKER_ERROR, Weight.OWN, False),
    ),
    (
        "DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message:"
        " address already in use",
        *("port", Cause.LAUNCH, Weight.OWN, False),
    ),
    (
        "DistNetworkError: The client socket has timed out after 600000ms while trying to connect"
        " to (n1, 17001).",
        *("rendezvous", Cause.LAUNCH, Weight.MAYBE, False),
    ),
    (
        "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        *("rendezvous", Cause.LAUNCH, Weight.MAYBE, False),
    ),
    (
        "socket.gaierror: [Errno -2] Name or service not known",
        *("head-name", Cause.LAUNCH, Weight.OWN, False),
    ),
    (
        f"RuntimeError: {PAIR} Connection closed by peer [10.0.0.1]:60802. This"
        f" is typically caused",
        *("echo", Cause.WORKER_ERROR, Weight.ECHO, False),
    ),
    (
        "DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a"
        " network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a"
        " network error\nLast error:\nsocketProgressOpt: Call to recv from 10.0.0.1<33759> failed",
        *("echo", Cause.WORKER_ERROR, Weight.ECHO, False),
    ),
    (
        "VoteError: the ranks did not agree within 300 s, or one is gone: x Connection closed by"
        " peer",
        *("echo", Cause.WORKER_ERROR, Weight.ECHO, False),
    ),
    (
        "VoteError: the ranks did not agree within 300 s",
        *("vote-timeout", Cause.HANG, Weight.MAYBE, False),
    ),
    (
        "RuntimeError:"
        " [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out"
        " waiting 1800000ms for recv operation to complete",
        *("collective-timeout", Cause.HANG, Weight.MAYBE, False),
    ),
    (
        "DistBackendError: NCCL error in: x.cpp:3763, remote error, NCCL version 2.28.8\nLast"
        " error:\nNET/OFI Request 0x7f14 completed with error. RC: 113. Error: 2 (UNDELIVERABLE).",
        *("ofi_request", Cause.FABRIC, Weight.MAYBE, False),
    ),
    (
        "DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.28.8",
        *("nccl-system", Cause.FABRIC, Weight.MAYBE, False),
    ),
    ("ValueError: bad batch 17", "exception", Cause.WORKER_ERROR, Weight.OWN, False),
    # A loss that is not finite is the program's own matter.
    ("FloatingPointError: loss is nan", "exception", Cause.WORKER_ERROR, Weight.OWN, False),
    ("", "exception", Cause.WORKER_ERROR, Weight.OWN, False),
]


@pytest.mark.parametrize(("text", "kind", "cause", "weight", "suspect"), EXCEPTIONS)
def test_exceptions(text: str, kind: str, cause: Cause, weight: Weight, suspect: bool) -> None:
    found = errors.read(text)
    assert (found.kind, found.cause, found.weight, found.suspect) == (kind, cause, weight, suspect)
    assert "\n" not in found.what


def test_every_pattern_of_exceptions_is_tried() -> None:
    tried = {kind for _, kind, *_ in EXCEPTIONS}
    assert {pattern.kind for pattern in errors.ERRORS} - tried == {
        *("ib", "vote", "nccl", "model-access")
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (OOM_NEW, "CUDA out of memory (324.00 MiB wanted, 91.25 MiB free)"),
        (OOM_OLD, "CUDA out of memory (2.00 GiB wanted, 1.10 GiB free)"),
        ("RuntimeError: CUDA error: out of memory", "CUDA out of memory"),
        ("ModuleNotFoundError: No module named 'a.b'", "a.b cannot be imported"),
        ("ValueError: one\ntwo", "ValueError: one"),
        ("ValueError: {x} \x1b[31m", "ValueError: {x} ?[31m"),
    ],
)
def test_what_exceptions_say(text: str, what: str) -> None:
    assert errors.read(text).what == what


def test_memory_that_is_wanted_names_what_to_turn_down() -> None:
    assert "micro_batch" in errors.read(OOM_NEW).advice


# --- lines ------------------------------------------------------------------------------------

STEP = "slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED AT 2026-11-29T22:10:01 DUE TO"
H = "n2:73076:73185 [4]"

LINES: list[tuple[tuple[Pattern, ...], str, str, Cause, Weight, str, bool]] = [
    # table, line, kind, cause, weight, node, speaks against it
    (BATCH, f"{STEP} PREEMPTION ***", "preempted", Cause.PREEMPTED, Weight.SLURM, "", False),
    (BATCH, f"{STEP} TIME LIMIT ***", "time-limit", Cause.TIME_LIMIT, Weight.SLURM, "", False),
    (
        BATCH,
        f"{STEP} NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        *("node-failure", Cause.NODE_FAILURE, Weight.SLURM, "", False),
    ),
    (BATCH, f"{STEP} JOB REQUEUE ***", "requeued", Cause.NOTICE, Weight.ECHO, "", False),
    (
        BATCH,
        "srun: error: Node failure on jean-zay-iam37",
        *("node-failure", Cause.NODE_FAILURE, Weight.SLURM, "jean-zay-iam37", True),
    ),
    (
        BATCH,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks"
        " have been OOM Killed.",
        *("oom-kill", Cause.OUT_OF_MEMORY, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.",
        *("oom-kill", Cause.OUT_OF_MEMORY, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "srun: error: sdumont6156: task 0: Out Of Memory",
        *("oom-kill", Cause.OUT_OF_MEMORY, Weight.ROOT, "sdumont6156", False),
    ),
    (
        BATCH,
        "srun: error: Task launch for StepId=10301666.2 failed on node gpu016: Socket timed out on"
        " send/recv operation",
        *("task-launch", Cause.LAUNCH, Weight.ROOT, "gpu016", True),
    ),
    (
        BATCH,
        "srun: error: Task launch for 23.0 failed on node hpc: Job prolog failed",
        *("task-launch", Cause.LAUNCH, Weight.ROOT, "hpc", True),
    ),
    (
        BATCH,
        "srun: error: Task launch for StepId=7993406.0 failed on node"
        " pool0-00509: Unable to satisfy"
        " cpu bind request",
        *("step-binding", Cause.LAUNCH, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "srun: error: Unable to create step for job 7: Invalid generic"
        " resource (gres) specification",
        *("step-create", Cause.LAUNCH, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: pyxis: failed to import docker image",
        *("container", Cause.LAUNCH, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2 returned error",
        *("container", Cause.LAUNCH, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "FATAL:   could not open image /x/train.sif: no such file or directory",
        *("container", Cause.LAUNCH, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: execve(): /tmp/slurmd/job00089/slurm_script: No such file or directory",
        *("spool", Cause.LAUNCH, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: execve(): bash: No such file or directory",
        *("execve", Cause.LAUNCH, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: Failed to invoke spank plugin stack",
        *("step-setup", Cause.LAUNCH, Weight.MAYBE, "", False),
    ),
    (
        BATCH,
        "slurmstepd: error: Unable to create TMPDIR [/scratch/1504221]: Permission denied",
        *("tmpdir", Cause.LAUNCH, Weight.MAYBE, "", False),
    ),
    (
        BATCH,
        "CommandNotFoundError: Your shell has not been properly configured to"
        " use 'conda activate'.",
        *("conda", Cause.CONFIGURATION, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "2026-11-29 22:10:00 fsdpq: cannot load the module cuda/12.9",
        *("script-setup", Cause.CONFIGURATION, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "mkdir: cannot create directory '/scratch/x': No space left on device",
        *("disk-full", Cause.DISK_FULL, Weight.ROOT, "", False),
    ),
    (
        BATCH,
        "/runs/llama/node.sh: line 58: /envs/x/bin/python: No such file or directory",
        *("interpreter", Cause.CONFIGURATION, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "/usr/bin/python3: Error while finding module specification for 'torch.distributed.run'"
        " (ModuleNotFoundError: No module named 'torch')",
        *("interpreter", Cause.CONFIGURATION, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local"
        " network address. port: 17001",
        *("port", Cause.LAUNCH, Weight.OWN, "", False),
    ),
    (
        BATCH,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2"
        " clients joined.",
        *("rendezvous", Cause.LAUNCH, Weight.MAYBE, "", False),
    ),
    (
        STDERR,
        "[Sun Nov 29 22:00:00 2026] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.",
        *("xid", Cause.GPU_FAILURE, Weight.ROOT, "n9", True),
    ),
    (
        BATCH,
        "kernel: NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, MMU Fault",
        *("xid", Cause.WORKER_ERROR, Weight.MAYBE, "", False),
    ),
    (
        BATCH,
        "kernel: NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        *("gpu-lost", Cause.GPU_FAILURE, Weight.ROOT, "", True),
    ),
    (
        STDERR,
        "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523,"
        " NumelOut=9801523, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
        *("watchdog", Cause.HANG, Weight.MAYBE, "n9", False),
    ),
    (
        STDERR,
        "[rank3]:[E1 06:24:44.9 ProcessGroupNCCL.cpp:682] [PG ID 0 PG GUID 0(default_pg) Rank 3]"
        " Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE,"
        " NumelIn=1, NumelOut=2, Timeout(ms)=300000) ran for 300001 milliseconds",
        *("watchdog", Cause.HANG, Weight.MAYBE, "n9", False),
    ),
    (
        STDERR,
        "train.py: error: unrecognized arguments: --lr",
        *("arguments", Cause.CONFIGURATION, Weight.OWN, "n9", False),
    ),
    (
        STDERR,
        "/venv/bin/python: can't open file '/work/trian.py': [Errno 2] No such file or directory",
        *("no-script", Cause.CONFIGURATION, Weight.OWN, "n9", False),
    ),
    (
        STDERR,
        "/usr/bin/python3: No module named orchestrator.trainer",
        *("interpreter", Cause.CONFIGURATION, Weight.OWN, "n9", False),
    ),
    (
        STDERR,
        "libfabric:85:1747438790::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa"
        " output empty list",
        *("efa_provider_missing", Cause.FABRIC, Weight.MAYBE, "n9", False),
    ),
    (
        STDERR,
        "[rank0]: libfabric:85:1::core:core:fi_getinfo():1392<warn> fi_getinfo: provider cxi output"
        " empty list",
        *("cxi_provider_missing", Cause.FABRIC, Weight.MAYBE, "n9", False),
    ),
    (
        STDERR,
        "[rank3]: NET/OFI Request 0x7f14cc5b60c0 completed with error. RC: 113. Error: 2"
        " (UNDELIVERABLE). Completed length: 0",
        *("ofi_request", Cause.FABRIC, Weight.MAYBE, "n9", False),
    ),
    (
        STDERR,
        "torch.distributed.DistBackendError: NCCL error in: x.hpp:268, remote process exited or"
        " there was a network error, NCCL version 2.21.5",
        *("remote_exit", Cause.WORKER_ERROR, Weight.ECHO, "n9", False),
    ),
    (
        STDERR,
        "[rank3]: socketProgressOpt: Call to recv from 10.0.0.1<33759> failed : Connection reset"
        " by peer",
        *("remote_exit", Cause.WORKER_ERROR, Weight.ECHO, "n9", False),
    ),
    # NCCL: formats of 2.18 to 2.30.
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


def one(table: tuple[Pattern, ...], line: str) -> Finding:
    (found,) = scan.findings([line], table, node="n9" if table is STDERR else "")
    return found


@pytest.mark.parametrize(("table", "line", "kind", "cause", "weight", "node", "suspect"), LINES)
def test_lines(
    table: tuple[Pattern, ...],
    line: str,
    kind: str,
    cause: Cause,
    weight: Weight,
    node: str,
    suspect: bool,
) -> None:
    found = one(table, line)
    assert (found.kind, found.cause, found.weight) == (kind, cause, weight)
    assert (found.node, found.suspect) == (node, suspect)
    assert "{" not in found.what


def test_no_line_of_the_batch_log_is_passed_over() -> None:
    for table, line, *_ in LINES:
        assert table is not BATCH or HINT.search(line)


def test_every_pattern_of_lines_is_tried() -> None:
    for table in (BATCH, STDERR, NCCL):
        tried = {kind for of, _, kind, *_ in LINES if of is table}
        left = {pattern.kind for pattern in table} - tried
        assert left <= ({"xid", "gpu-lost"} if table is STDERR else set())


@pytest.mark.parametrize(
    "line",
    [
        "the prompt was: slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED AT x DUE TO PREEMPTION",
        "he said srun: error: Node failure on n2",
        "step 3: CUDA out of memory is what users ask most",
        "ModuleNotFoundError: No module named 'x'",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE,"
        " NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600020 milliseconds",
        "NCCL WARN NET/IB : Got async event : port error",
        "usage: train.py [-h]",
        "NVRM: Xid (PCI:0000:65:00): 999, what nobody knows",
        "[rank1]: train.py: error: unrecognized arguments: --lr",
        "",
        "\x00" * 5000,
        "x" * 100_000,
    ],
)
def test_the_same_words_in_other_lines_are_none(line: str) -> None:
    for table in (BATCH, STDERR, NCCL):
        assert scan.findings([line], table) == []


def test_a_line_cannot_pretend_to_begin_inside_of_another() -> None:
    for letter in "\r\x0b\x0c\x1c\x85\u2028":
        text = f"[default0]:x{letter}{STEP} PREEMPTION ***"
        assert scan.findings(scan.lines(text), BATCH) == []


def test_what_is_said_a_million_times_is_heard_a_few_times() -> None:
    line = f"{H} misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n1<4>"
    assert len(scan.findings([line] * 5_000, NCCL)) == 16


def test_what_a_line_says_is_put_in_words() -> None:
    watchdog = next(line for _, line, kind, *_ in LINES if kind == "watchdog")
    found = one(STDERR, watchdog)
    assert found.rank == 1
    assert found.what == "waited 600000 ms for the others in ALLREDUCE (sequence number 808)"
    assert "Job prolog failed" in one(BATCH, LINES[9][1]).what


@pytest.mark.parametrize(
    ("table", "line", "peer"),
    [
        (STDERR, "socketProgress: Connection closed by remote peer n1.x<41>", "n1.x<41>"),
        (
            STDERR,
            "socketProgressOpt: Call to recv from 10.0.0.1<33759> failed : Connection reset by"
            " peer",
            "10.0.0.1<33759>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN socketProgress: Connection closed by remote peer n1<4>",
            "n1<4>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN Call to connect to fe80::1%eth0<9> failed : Connection refused",
            "fe80::1%eth0<9>",
        ),
        (
            NCCL,
            f"{H} x.cc:1 NCCL WARN NET/IB : Got completion from peer n1<4> with error 12, opcode 2",
            "n1<4>",
        ),
    ],
)
def test_the_other_end_of_a_connection_is_kept(
    table: tuple[Pattern, ...], line: str, peer: str
) -> None:
    found = one(table, line)
    assert found.peer == peer
    assert peer in found.what
