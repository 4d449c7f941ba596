"""What lines of logs mean: Slurm's, the kernel's, NCCL's, torch's. Pure.

Each pattern is bound to the way its program begins a line, so that the same words in what a
training script prints are not taken for it.
"""

import re

from orchestrator.attempt import Weight
from orchestrator.cause import Cause
from orchestrator.evidence.pattern import Pattern, make

_ENDED = (
    r"^slurmstepd(?:-\S+)?: (?:error: )?\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO "
)
# How bash names the script that a line of it failed in.
_SCRIPT = r"^\S*(?:node\.sh|script\.sbatch|slurm_script): line \d+: "

# batch.log. Sources: the strings in slurmstepd and srun of Slurm 22.05.8, 24.11.5 and 26.05.5; logs
# of nextflow#5932, HAFS#101, dmtcp#702, pyxis#61, #78, #101, ubuntu-slurm#4, ArjunaUsers#46.
BATCH: tuple[Pattern, ...] = (
    make("preempted", Cause.PREEMPTED, Weight.SLURM, _ENDED + "PREEMPTION", "preempted by Slurm"),
    make(
        "time-limit",
        Cause.TIME_LIMIT,
        Weight.SLURM,
        _ENDED + "TIME LIMIT",
        "the time limit was reached",
    ),
    make(
        "node-failure",
        Cause.NODE_FAILURE,
        Weight.SLURM,
        r"^srun: error: Node failure on (?P<node>\S+)",
        "Slurm lost the node",
        advice="Slurm puts the job back; exclude the node if it comes again",
        suspect=True,
    ),
    # The node in this line is the one that lives to tell.
    make(
        "node-failure",
        Cause.NODE_FAILURE,
        Weight.SLURM,
        _ENDED + "NODE FAILURE",
        "Slurm lost a node of the job",
    ),
    # 21.08 and later; before that "oom-kill event(s) in step 3.0 cgroup".
    make(
        "oom-kill",
        Cause.OUT_OF_MEMORY,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: Detected (?P<count>\d+) oom[-_]kill event",
        "the kernel killed {count} process(es) of the job: out of memory",
        advice="Ask for more memory (mem), or use fewer data workers or a smaller model per node",
    ),
    make(
        "oom-kill",
        Cause.OUT_OF_MEMORY,
        Weight.ROOT,
        r"^srun: error: (?P<node>\S+): tasks? \S+: Out Of Memory",
        "the kernel killed a process of the job: out of memory",
        advice="Ask for more memory (mem), or use fewer data workers or a smaller model per node",
    ),
    # Of a job in a job, and not the node's fault.
    make(
        "step-binding",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^srun: error: Task launch for \S+ failed on node \S+: (?P<why>Unable to"
        r" (?:satisfy cpu bind"
        r" request|layout tasks).*)",
        "srun could not start the nodes: {why}",
        advice="Submit from a login node and not from inside another job",
    ),
    make(
        "task-launch",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^srun: error: Task launch for \S+ failed on node (?P<node>\S+): (?P<why>.+)",
        "srun could not start the task: {why}",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    make(
        "step-create",
        Cause.LAUNCH,
        Weight.OWN,
        r"^srun: error: Unable to create step for job \S+: (?P<why>.+)",
        "srun could not start the nodes: {why}",
    ),
    make(
        "container",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: pyxis: (?P<why>\s*(?:\[ERROR\]|enroot-\w+:|failed to import"
        r"|child \d+ failed|container start failed).*)",
        "the container did not start: {why}",
        advice="Look at the image, at its registry and at the node's enroot",
    ),
    make(
        "container",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^FATAL:   (?P<why>.+)",
        "the container did not start: {why}",
        advice="Look at the image, and at the node's apptainer",
    ),
    make(
        "spool",
        Cause.LAUNCH,
        Weight.ROOT,
        r"^slurmstepd(?:-\S+)?: error: execve\(\): (?P<why>\S*/slurm_script: .+)",
        "Slurm could not start the script: {why}",
        advice="The node's spool directory is broken: restart without this node",
    ),
    make(
        "execve",
        Cause.LAUNCH,
        Weight.OWN,
        r"^slurmstepd(?:-\S+)?: error: execve\(\): (?P<why>.+)",
        "Slurm could not start {why}",
    ),
    make(
        "step-setup",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"^slurmstepd(?:-\S+)?: error: (?P<why>Failed to invoke (?:spank|task) plugin.*)",
        "Slurm could not set up the step: {why}",
    ),
    # slurmstepd goes on in /tmp, so this is rarely what ended the job.
    make(
        "tmpdir",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"^slurmstepd(?:-\S+)?: error: (?P<why>(?:Unable to create )?TMPDIR \[.+)",
        "{why}",
    ),
    make(
        "conda",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"has not been properly configured to use 'conda activate'|Run 'conda init' before 'conda"
        r" activate'",
        "conda is not set up in a batch job's shell",
        advice="Name the environment's interpreter in the job file: `python:"
        " /path/to/env/bin/python`",
    ),
    make(
        "script-setup",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^\S+ \S+ fsdpq: (?P<why>cannot load the module .+|this node has no 'module' command.+"
        r"|cannot enter the working directory|scontrol cannot read .+)",
        "{why}",
    ),
    make(
        "disk-full",
        Cause.DISK_FULL,
        Weight.ROOT,
        r"^(?:bash|mkdir|mktemp|\S+\.sh|\S+\.sbatch|\S*slurm_script): .*(?:No space left on device"
        r"|Disk quota exceeded)",
        advice="Make room, then `fsdpq requeue`",
    ),
    make(
        "interpreter",
        Cause.CONFIGURATION,
        Weight.OWN,
        _SCRIPT + r"(?P<why>.+: (?:command not found|No such file or directory|Permission denied))",
        "the node could not start {why}",
        advice="Does `python` of the job file exist on all nodes?",
    ),
    make(
        "interpreter",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^(?P<python>\S*python\S*): (?:No module named '?torch|Error while finding module"
        r" specification for 'torch\.)",
        "{python} has no torch",
        advice="Name the interpreter with torch as `python` in the job file",
    ),
    make(
        "port",
        Cause.LAUNCH,
        Weight.OWN,
        r"Error: The server socket has failed to listen on any local network address",
        "the port of the rendezvous is in use on the head node",
        advice="The next attempt uses another port",
    ),
    make(
        "rendezvous",
        Cause.LAUNCH,
        Weight.MAYBE,
        r"Error: (?:Timed out after .* waiting for clients\. (?P<joined>\d+/\d+) clients joined|The"
        r" client socket has timed out .*|Rendezvous\w*Error.*)",
        "the nodes did not come together",
        advice="Look at why a node came late or not at all: `fsdpq logs`",
    ),
    # Only where somebody has the kernel's log printed; NVIDIA's Xid catalogue (nvidia.com, "Xid
    # Errors"): memory (48, 63, 64, 92, 94, 95, 140), bus (79), NVLink (74, 144 to 150), firmware
    # (61, 62, 119, 120, 143).
    make(
        "xid",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"NVRM: Xid \(PCI:[^)]*\): (?P<xid>48|6[1-4]|74|79|92|9[45]|119|12[0]"
        r"|14[03-9]|150),(?P<text>.*)",
        "the driver reports Xid {xid}: {text}",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    make(
        "xid",
        Cause.WORKER_ERROR,
        Weight.MAYBE,
        r"NVRM: Xid \(PCI:[^)]*\): (?P<xid>13|31|43|45|68|69),(?P<text>.*)",
        "the driver reports Xid {xid}, mostly of a program: {text}",
    ),
    make(
        "gpu-lost",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"NVRM: .*fallen off the bus",
        "a GPU has fallen off the bus",
        advice="Restart without this node, and tell your administrators",
        suspect=True,
    ),
    # What the batch shell's own `scontrol requeue` looks like: no failure (submitit#1708).
    make("requeued", Cause.NOTICE, Weight.ECHO, _ENDED + "JOB REQUEUE", "put back by a requeue"),
)

# What each line that BATCH knows has in it: most lines have not, and are passed over at once.
HINT = re.compile(
    r"slurmstepd|srun: |FATAL|fsdpq: |conda|NVRM|: line \d|No space left|quota exceeded|Error: "
    r"|python"
)

OFI_ADVICE = (
    "UNDELIVERABLE and the like say that the other end did not answer: look at that node, and at"
    " the security group or switch between the two"
)

_ENDED_FIRST = (
    "The rank that ended first knows why: look at the logs of the others, and at the node at the"
    " other end of the connection"
)

# stderr of a rank, beside its traceback. Sources: ProcessGroupNCCL.cpp (BasicSR#737), CPython's
# argparse and getpath, pytorch's what() of uncaught C++ exceptions.
STDERR: tuple[Pattern, ...] = (
    make(
        "watchdog",
        Cause.HANG,
        Weight.MAYBE,
        r"ProcessGroupNCCL\.cpp:\d+\] \[(?:PG .*?)?Rank (?P<rank>\d+)\] Watchdog caught collective"
        r" operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+),.*?Timeout\(ms\)="
        r"(?P<ms>\d+)\)",
        "waited {ms} ms for the others in {op} (sequence number {seq})",
        advice="A rank hung or was slow, not this one: look at attempts/N/stacks, and run"
        " `torchfrtrace attempts/N/nccl -p flight-recorder-rank-`",
    ),
    # aws-ofi-nccl#889.
    *(
        make(
            f"{provider}_provider_missing",
            Cause.FABRIC,
            Weight.MAYBE,
            rf"libfabric:\d+:.*fi_getinfo(?:_\(\))?:.*provider {provider} output empty list",
            f"libfabric has no provider {provider} on this node",
            advice=advice,
        )
        for provider, advice in (
            (
                "efa",
                "Is the EFA driver loaded and an EFA interface attached (`fi_info -p efa`)? In a"
                " container: the libfabric of the EFA installer, and /dev/infiniband",
            ),
            (
                "cxi",
                "Is this the site's own libfabric (`fi_info -p cxi`)? A container needs it mounted",
            ),
        )
    ),
    # aws-ofi-nccl in torch's "Last error:"; nccl#1928.
    make(
        "ofi_request",
        Cause.FABRIC,
        Weight.MAYBE,
        r"^(?:\[rank(?P<rank>\d+)\]: ?)?NET/OFI Request \S+ completed with error\. RC: \d+\."
        r" Error: (?P<why>.+?)\.(?: |$)",
        "a transfer of libfabric failed ({why})",
        advice=OFI_ADVICE,
    ),
    # nccl#2076: the other side ended first, or the network did.
    make(
        "remote_exit",
        Cause.WORKER_ERROR,
        Weight.ECHO,
        r"^(?:\[rank(?P<rank>\d+)\]: ?)?socketProgress\w*: (?:Call to \w+ (?:from|to)|Connection"
        r" closed by remote peer) (?P<peer>[^\s<>]+<\d+>)(?=\s*$|\W.*(?:reset by peer|closed by"
        r" remote peer))",
        "the connection to {peer} is gone: that rank ended, or the network to it did",
        advice=_ENDED_FIRST,
    ),
    make(
        "remote_exit",
        Cause.WORKER_ERROR,
        Weight.ECHO,
        r"^(?:\[rank(?P<rank>\d+)\]: ?)?(?:torch\.distributed\.DistBackendError: NCCL error in: .*"
        r"remote process exited or there was a network error|ncclRemoteError: |socketProgress\w*:"
        r" Call to \w+ (?:from|to) .*(?:reset by peer|closed by remote peer))",
        "another rank is gone, or the network to it",
        advice=_ENDED_FIRST,
    ),
    make(
        "arguments",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^\S+\.py: error: (?P<why>(?:unrecognized arguments|the following arguments are required"
        r"|argument ).*)",
        "the script does not take its arguments: {why}",
        advice="Mend `args` in the job file",
    ),
    make(
        "no-script",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^\S*python\S*: can't open file '?(?P<path>[^']+)'?: (?P<why>.+)",
        "there is no script {path} ({why})",
        advice="Does `script` of the job file exist on all nodes?",
    ),
    make(
        "interpreter",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^(?P<python>\S*python\S*): No module named (?P<module>\S+)",
        "{python} has no module {module}",
        advice="Install it for the interpreter that the job file names as `python`",
    ),
    *(pattern for pattern in BATCH if pattern.kind in ("xid", "gpu-lost")),
)

_NCCL = (
    r"^(?:\[[^\]]*\] )?(?P<node>[^\s:\[]+):\d+:\d+ \[-?\d+\] (?:\S+:\d+ )?(?:\(\w+\) )?NCCL WARN "
)
_CABLE = "Retry without this node; its port or cable is in trouble"
_EVENT = _NCCL + (
    r"NET/IB ?: (?:(?P<hca>\S+:\d+) )?(?:Got (?:non-fatal )?async event|async fatal event)[^:]*: "
)
_COMPLETION = _NCCL + (
    r"NET/IB\w* ?: ?Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)\s?"
)
_MEMLOCK = (
    "Is `ulimit -l` unlimited in the job? Else ask your administrators (LimitMEMLOCK of slurmd)"
)
_GID = (
    "unset NCCL_IB_GID_INDEX (NCCL finds it by itself since 2.21), and compare the GID tables of"
    " the two nodes"
)

# NCCL WARN lines. Sources: format strings of NVIDIA/nccl 2.18 to 2.30; ibv_event_type_str of
# rdma-core; nccl#905, #1434, #1557, #2013, #2076, #707, #778, #1191, lit-llama#380, nccl-tests#206.
NCCL: tuple[Pattern, ...] = (
    make(
        "port_down",
        Cause.FABRIC,
        Weight.ROOT,
        _EVENT + r"(?P<event>port error|local catastrophic error)",
        "the InfiniBand adapter reports: {event}",
        advice=_CABLE,
        suspect=True,
    ),
    # A subnet manager that moves, a port that comes back: no failure.
    make(
        "async_event",
        Cause.NOTICE,
        Weight.ECHO,
        _EVENT + r"(?P<event>communication established|send queue drained|path migrated|port active"
        r"|LID change|P_Key change|SM change|SRQ limit reached|last WQE reached"
        r"|client reregistration|GID table change)",
        "the InfiniBand adapter reports: {event}",
    ),
    make(
        "async_error",
        Cause.FABRIC,
        Weight.OWN,
        _EVENT + r"(?P<event>.+)",
        "the InfiniBand adapter reports: {event}",
        advice=_CABLE,
        suspect=True,
    ),
    make(
        "gpu-ecc",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        _NCCL + r".*uncorrectable (?P<what>ECC|NVLink) error",
        "uncorrectable {what} error",
        advice=_CABLE.replace("its port or cable is", "its GPU is"),
        suspect=True,
    ),
    make(
        "cuda-oom",
        Cause.GPU_MEMORY,
        Weight.OWN,
        _NCCL + r"Cuda failure (?:\d+ )?'out of memory'",
        "no GPU memory left for NCCL's buffers",
        advice="Leave NCCL a GiB or two: lower train.micro_batch, or turn on activation"
        " checkpointing",
    ),
    # nccl#1191: thousands of ranks.
    make(
        "ibv_create_cq",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL
        + r"Call to (?P<call>ibv_create_cq\w*) failed with (?:error )?(?:\d+ )?Cannot allocate"
        r" memory",
        "{call} failed: Cannot allocate memory",
        advice=f"{_MEMLOCK}. With thousands of ranks the adapter runs out of queues: fewer"
        " NCCL_IB_QPS_PER_CONNECTION",
    ),
    make(
        "ibv_reg_mr",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL
        + r"Call to (?P<call>ibv_(?:reg_mr|create_qp)\w*) failed with (?:error )?(?:\d+ )?Cannot"
        r" allocate memory",
        "{call} failed: Cannot allocate memory",
        advice=_MEMLOCK,
    ),
    # nccl#778: NCCL is to go on by nvidia-peermem then, and old versions do not.
    make(
        "dmabuf",
        Cause.FABRIC,
        Weight.MAYBE,
        _NCCL + r"Call to ibv_reg_dmabuf_mr failed(?: with (?:error )?(?P<why>.+))?",
        "the GPU's memory could not be registered with DMA-BUF ({why})",
        advice="NCCL_DMABUF_ENABLE=0 goes around it, with nvidia-peermem loaded; else a newer NCCL,"
        " or a newer driver of the adapter",
    ),
    # nccl#2013.
    make(
        "ibv_modify_qp",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL + r"Call to ibv_modify_qp failed with (?:error )?(?P<why>110\b[^,]*|Connection timed"
        r" out)(?:, on dev (?P<dev>[^,]+))?",
        "no InfiniBand or RoCE connection could be made ({why}, adapter {dev})",
        advice=f"On a rail-only fabric NCCL_CROSS_NIC=0; on RoCE {_GID}",
    ),
    make(
        "ibv_modify_qp",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL + r"Call to ibv_modify_qp failed with (?:error )?(?P<why>[^,]+)(?:, on dev"
        r" (?P<dev>[^,]+))?",
        "no InfiniBand or RoCE connection could be made ({why}, adapter {dev})",
        advice=f"On RoCE {_GID}; on a rail-only fabric NCCL_CROSS_NIC=0",
    ),
    make(
        "ib_call",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL + r"Call to (?P<call>(?:ibv|mlx5dv)_\w+) failed(?: with (?:error )?(?P<why>.+))?",
        "{call} failed: {why}",
        advice="Retry without this node",
        suspect=True,
    ),
    # Flushed requests only say that the connection is gone.
    make(
        "wc5",
        Cause.FABRIC,
        Weight.ECHO,
        _COMPLETION + r"(?:IBV_WC_WR_FLUSH_ERR\()?5(?=[,)\s])",
        "requests were flushed",
    ),
    # 12: no answer from the other side, be it the cable, the switch or that the peer is gone.
    make(
        "wc12",
        Cause.FABRIC,
        Weight.MAYBE,
        _COMPLETION + r"(?:IBV_WC_RETRY_EXC_ERR\()?12(?=[,)\s])",
        "no answer from {peer} over InfiniBand (retries used up, status 12)",
        advice="A cable, a switch, or the other node: NCCL_IB_TIMEOUT=22 rides out short ones",
    ),
    # nccl#707: GPUDirect through a PCI switch whose access control sends it up to the CPU.
    make(
        "loc_prot_err_acs_or_gdr",
        Cause.FABRIC,
        Weight.OWN,
        _COMPLETION + r"(?:IBV_WC_LOC_PROT_ERR\()?4(?=[,)\s])",
        "an InfiniBand transfer touched memory that the adapter may not use (status 4,"
        " LOC_PROT_ERR)",
        advice="GPUDirect with PCI access control (ACS) on, or over too long a way: ask for ACS to"
        " be turned off, leave NCCL_NET_GDR_LEVEL unset, and keep RoCE ports out of NCCL_IB_HCA on"
        " an InfiniBand fabric",
    ),
    make(
        "wc_error",
        Cause.FABRIC,
        Weight.OWN,
        _COMPLETION + r"(?P<status>(?:IBV_WC_\w+\()?\d+)(?=[,)\s])",
        "an InfiniBand transfer with {peer} failed (status {status})",
        advice="Look at the adapter and its port on this node, and at the node at the other end",
    ),
    make(
        "forced_network_missing",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL + r"(?P<why>Error: network .* not found)",
        "{why}",
        advice="NCCL_NET names a network whose plugin is not here: look at LD_LIBRARY_PATH, at what"
        " the container mounts, and at NCCL_NET_PLUGIN",
    ),
    # 2.27 and later say it so for a network that is forced, too.
    make(
        "no_net_plugin",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL + r"(?P<why>Failed to initialize any NET plugin)",
        "{why}",
        advice="NCCL_NET or NCCL_NET_PLUGIN asks for what is not here: look at the site profile,"
        " at LD_LIBRARY_PATH, and at what the container mounts",
    ),
    make(
        "interface",
        Cause.FABRIC,
        Weight.OWN,
        _NCCL
        + r"(?P<why>Bootstrap : no socket interface found.*|No (?:usable )?interface found.*)",
        "{why}",
        advice="NCCL_SOCKET_IFNAME names an interface that this node does not have",
    ),
    make(
        "ofi_request",
        Cause.FABRIC,
        Weight.MAYBE,
        _NCCL + r"(?:NET/OFI )?Request \S+ completed with error\. RC: (?P<code>\d+)\."
        r" Error: (?P<why>.+?)\.(?: |$)",
        "a transfer of libfabric failed ({why})",
        advice=OFI_ADVICE,
    ),
    make(
        "peer_closed",
        Cause.FABRIC,
        Weight.ECHO,
        _NCCL + r".*(?:Connection closed by remote peer|(?:[Cc]all to \w+|[Cc]onnect) (?:from|to)"
        r"|[Cc]onnection to) (?P<peer>[^\s<>]+<\d+>)"
        r"(?=\s*$|\W.*(?:reset by peer|refused|closed by remote peer|failed))",
        "the connection to {peer} is gone",
    ),
    make(
        "peer_closed",
        Cause.FABRIC,
        Weight.ECHO,
        _NCCL
        + r".*(?:[Cc]onnection (?:closed by remote peer|refused|reset by peer)|[Cc]onnect to .*"
        r" (?:failed|refused))",
        "the connection to another rank is gone",
    ),
)
