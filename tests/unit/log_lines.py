"""Lines of batch.log and of the ranks' stderr that mean something, and what they mean."""

from __future__ import annotations

from orchestrator.evidence.batch import BATCH
from orchestrator.evidence.pattern import Pattern
from orchestrator.evidence.stderr import STDERR
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause

STEP = "slurmstepd: error: *** STEP 41.0 ON n1 CANCELLED AT 2026-11-29T22:10:01 DUE TO"
LOG_LINES: list[tuple[tuple[Pattern, ...], str, str, Cause, Weight, str, bool]] = [
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
]
