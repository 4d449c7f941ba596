"""What NCCL's warnings mean. Pure.

Each pattern is bound to the way its program begins a line, so that the same words in what a
training script prints are not taken for it.
"""

from orchestrator.evidence.pattern import Pattern, make
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause

OFI_ADVICE = (
    "UNDELIVERABLE and the like say that the other end did not answer: look at that node, and at"
    " the security group or switch between the two"
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
