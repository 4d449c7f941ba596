"""What lines on stderr of a rank mean: torch's, libfabric's, Python's. Pure.

Each pattern is bound to the way its program begins a line, so that the same words in what a
training script prints are not taken for it.
"""

from orchestrator.evidence.batch import BATCH
from orchestrator.evidence.nccl import OFI_ADVICE
from orchestrator.evidence.pattern import Pattern, make
from orchestrator.rundir.attempt import Weight
from orchestrator.rundir.cause import Cause

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
