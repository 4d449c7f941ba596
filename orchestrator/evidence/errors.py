"""What the exception that ended a rank means. Pure.

A text is "Type: message" with all its lines, as an error file or the end of a traceback has it.
The first pattern that matches counts, so the ones that name a broken part come first.

Sources: cuda-runtime-api, "Data types used by CUDA Runtime" (the words of cudaErrorECCUncorrectable
214, NvlinkUncorrectable 220, NoDevice 100, InvalidDevice 101, IllegalAddress 700, Assert 710,
LaunchFailure 719); c10/cuda/CUDACachingAllocator.cpp and CUDAException.cpp; errno(3); c10d's
socket.cpp and TCPStore.cpp; gloo's transport/tcp; torch 2.11 to 2.14 where nothing else stands.
"""

from orchestrator.evidence.pattern import Pattern, make, short
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

_LESS_MEMORY = (
    "Lower train.micro_batch, turn on activation checkpointing, or take more"
    " nodes, so that each GPU"
    " holds a smaller shard; fsdpq plan JOB names what fits"
)
_OTHER_NODE = "Restart without this node, and tell your administrators"
_PROGRAM = "Run once with CUDA_LAUNCH_BLOCKING=1: the stack then names the kernel"

ERRORS: tuple[Pattern, ...] = (
    # MFC#1748, #1750: always on the same node, which nobody had drained.
    make(
        "gpu-ecc",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"uncorrectable ECC error encountered",
        "the GPU's memory is broken (uncorrectable ECC error)",
        advice=_OTHER_NODE,
        suspect=True,
    ),
    # pytorch#58155, nnUNet#1519.
    make(
        "nvlink",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"uncorrectable NVLink error detected",
        "an NVLink failed (uncorrectable NVLink error)",
        advice=_OTHER_NODE,
        suspect=True,
    ),
    make(
        "gpu-lost",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"fallen off the bus|GPU is lost",
        "a GPU is not there any more (fallen off the bus)",
        advice=_OTHER_NODE,
        suspect=True,
    ),
    make(
        "no-gpu",
        Cause.GPU_FAILURE,
        Weight.ROOT,
        r"no CUDA-capable device is detected|No CUDA GPUs are available|system not yet initialized"
        r"|Found no NVIDIA driver on your system|CUDA driver initialization failed",
        "CUDA finds no GPU that works",
        advice="Look at `nvidia-smi` on this node, and at the GPUs that the job asks for",
        suspect=True,
    ),
    # deepops#1102, mace#435: --gpus-per-task, or more processes than GPUs.
    make(
        "gpu-number",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"CUDA error: invalid device ordinal|Duplicate GPU detected",
        "there are more processes on the node than GPUs that they may see",
        advice="Compare gpus_per_node with what the partition has, and drop --gpus-per-task",
    ),
    make(
        "no-cuda",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"Torch not compiled with CUDA enabled",
        "this torch was built without CUDA",
        advice="Install a CUDA build of torch for `python`",
    ),
    make(
        "cuda-oom",
        Cause.GPU_MEMORY,
        Weight.OWN,
        r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+)"
        r"(?:(?s:.){0,400}?(?:of which (?P<free>[\d.]+ \w+) is free|; (?P<left>[\d.]+ \w+) free))?",
        "",
        advice=_LESS_MEMORY,
    ),
    # NCCL's own buffers: NCCL WARN Cuda failure 2 'out of memory'.
    make(
        "cuda-oom",
        Cause.GPU_MEMORY,
        Weight.OWN,
        r"OutOfMemoryError: |CUDA (?:driver )?error: out of memory|Cuda failure"
        r" (?:\d+ )?'out of memory'"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
        "CUDA out of memory",
        advice=_LESS_MEMORY,
    ),
    make(
        "cuda-assert",
        Cause.WORKER_ERROR,
        Weight.OWN,
        r"device-side assert triggered",
        "a kernel's assertion failed (device-side assert)",
        advice="Mostly an index out of range: labels, token ids beyond the vocabulary. " + _PROGRAM,
    ),
    make(
        "cuda-kernel",
        Cause.WORKER_ERROR,
        Weight.OWN,
        r"(?:CUDA error: |Cuda failure (?:\d+ )?')(?P<name>an illegal memory access"
        r" was encountered|unspecified launch failure"
        r"|misaligned address|an illegal instruction was encountered)",
        "CUDA error: {name}",
        advice="Program or GPU, this does not say which: an Xid in the node's kernel log speaks for"
        " the GPU, the same step again for the program. " + _PROGRAM,
    ),
    make(
        "shared-memory",
        Cause.OUT_OF_MEMORY,
        Weight.OWN,
        r"No space left on device[^\n]*/(?:dev/shm|torch_)|out of shared memory"
        r"|insufficient shared memory"
        r"|unable to (?:open|mmap) shared memory",
        "no room in /dev/shm for the data loader's workers",
        advice="Give the container a larger /dev/shm, or use fewer data workers",
    ),
    # mmdetection#12069, Automodel#3390: a restart only fills the disk again.
    make(
        "disk-full",
        Cause.DISK_FULL,
        Weight.ROOT,
        r"No space left on device|\[Errno 28\](?! inotify)|ENOSPC",
        "",
        advice="Make room (older runs, checkpoint.keep_last), then `fsdpq requeue`",
    ),
    make(
        "quota",
        Cause.DISK_FULL,
        Weight.ROOT,
        r"Disk quota exceeded|\[Errno 122\]|EDQUOT",
        "",
        advice="Your quota is used up, perhaps that of files: make room, then `fsdpq requeue`",
    ),
    make(
        "host-oom",
        Cause.OUT_OF_MEMORY,
        Weight.OWN,
        r"MemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't"
        r" allocate|not enough) memory",
        "",
        advice="The node's memory is used up: ask for more (mem), or use fewer data workers",
    ),
    make(
        "loader-killed",
        Cause.WORKER_ERROR,
        Weight.OWN,
        r"DataLoader worker \(pid\(?s?\)? (?P<pids>[\d, ]+)\) (?P<how>is killed by signal: \w+"
        r"|exited unexpectedly)",
        "DataLoader worker {pids} {how}",
        advice="Most often the node's memory or /dev/shm is full: fewer data workers, or more mem",
    ),
    make(
        "checkpoint-keys",
        Cause.CHECKPOINT,
        Weight.OWN,
        r"Missing key in checkpoint state_dict|Missing key\(s\) in state_dict"
        r"|Unexpected key\(s\) in"
        r" state_dict|Error\(s\) in loading state_dict|size mismatch for ",
        "",
        advice="The checkpoint is of another model or optimizer: go back to the"
        " configuration it was"
        " saved with, or start a run of another name",
    ),
    make(
        "module",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
        "{module} cannot be imported",
        advice="Install it for the interpreter that the job file names as `python`, where all nodes"
        " can read it",
    ),
    make(
        "import",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^(?:\w+\.)*ImportError: ",
        "",
        advice="Look at the environment of the interpreter that the job file names as `python`",
    ),
    make(
        "syntax",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"^(?:SyntaxError|IndentationError|TabError): ",
        "",
        advice="Mend the script, then `fsdpq requeue`",
    ),
    make("spec", Cause.CONFIGURATION, Weight.OWN, r"^(?:\w+\.)*SpecError: "),
    # huggingface_hub's words for what a restart does not change.
    make(
        "model-access",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"GatedRepoError|is not a local folder and is not a valid model identifier",
        "",
        advice="Look at the name of the model, and at the token that the job starts with",
    ),
    make(
        "permission",
        Cause.CONFIGURATION,
        Weight.OWN,
        r"PermissionError: |\[Errno 13\]",
        "",
        advice="Look at who may write there, and at the node's mounts",
    ),
    make(
        "storage",
        Cause.WORKER_ERROR,
        Weight.OWN,
        r"\[Errno (?:5|30|107|116)\]|Read-only file system|Stale file handle|Input/output error"
        r"|Transport endpoint is not connected",
        "",
        advice="A file system of this node is in trouble: if it comes again here, exclude the node",
    ),
    make(
        "port",
        Cause.LAUNCH,
        Weight.OWN,
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port of the rendezvous is in use on the head node",
        advice="The next attempt uses another port",
    ),
    make(
        "head-name",
        Cause.LAUNCH,
        Weight.OWN,
        r"(?:Name or service not known|Temporary failure in name resolution|failed to get address)",
        "the head node's name does not resolve",
        advice="Ask your administrators why this node cannot resolve the names of the others",
    ),
    *(
        make(
            "rendezvous",
            Cause.LAUNCH,
            Weight.MAYBE,
            regex,
            what,
            advice="Look at why a node came late or not at all: `fsdpq logs`",
        )
        for regex, what in (
            (
                r"client socket has timed out after (?P<time>\w+) while trying to connect to"
                r" \((?P<head>[^,)]+)",
                "the head node {head} did not answer within {time}",
            ),
            (
                r"(?P<joined>\d+)/(?P<all>\d+) clients joined",
                "only {joined} of {all} nodes came to the rendezvous",
            ),
            (r"Rendezvous(?:Timeout|Connection)Error", "the nodes did not come together"),
        )
    ),
    # nccl#1928: torch calls it "remote process exited", and the last error says more.
    make(
        "ofi_request",
        Cause.FABRIC,
        Weight.MAYBE,
        r"NET/OFI Request \S+ completed with error\. RC: \d+\. Error: (?P<why>[^\n]+?)\.(?:\s|$)",
        "a transfer of libfabric failed ({why})",
        advice="The other end did not answer: look at that node, and at what is between the two",
    ),
    # nccl#2076, #1434; gloo's pair.cc: the other side closed, so the other side ended first.
    make(
        "echo",
        Cause.WORKER_ERROR,
        Weight.ECHO,
        r"[Cc]onnection (?:closed by (?:remote )?peer|reset by (?:remote )?peer"
        r"|refused)|[Bb]roken pipe"
        r"|ncclRemoteError|remote process exited|socketProgress|NCCL communicator was aborted"
        r"|failed to recv, got 0 bytes|recvValue(?:WithTimeout)? failed|sendBytes failed"
        r"|got signal: 15",
    ),
    make(
        "collective-timeout",
        Cause.HANG,
        Weight.MAYBE,
        r"Timed out waiting (?P<ms>\d+)ms for (?P<what>\w+) operation",
        "waited {ms} ms for another rank (gloo {what})",
        advice="A rank hung or was slow: look at attempts/N/stacks and the ranks' last steps",
    ),
    make(
        "vote-timeout",
        Cause.HANG,
        Weight.MAYBE,
        r"VoteError: the ranks did not agree within (?P<time>[\d.e+]+) s$",
        "a rank did not come to the vote within {time} s",
        advice="A rank hung or was slow: look at attempts/N/stacks and the ranks' last steps",
    ),
    make(
        "ib",
        Cause.FABRIC,
        Weight.OWN,
        r"(?:Call to )?(?P<call>ibv_\w+|mlx5dv_\w+) failed",
        "",
        advice="Retry without this node; `fsdpq logs` has the adapter and the port",
        suspect=True,
    ),
    make(
        "nccl-system",
        Cause.FABRIC,
        Weight.MAYBE,
        r"unhandled system error|ncclSystemError",
        "",
        advice="The first NCCL WARN in attempts/N/nccl names the call that failed",
    ),
    make("vote", Cause.WORKER_ERROR, Weight.ECHO, r"VoteError"),
    make("nccl", Cause.WORKER_ERROR, Weight.MAYBE, r"^(?:\S+\.)?DistBackendError: "),
)


def read(text: str) -> Finding:
    """Return what an exception means; one that no pattern knows is an error of the program."""
    for pattern in ERRORS:
        if found := pattern.finding(text):
            return _memory(text, found) if found.kind == "cuda-oom" else found
    return Finding(kind="exception", cause=Cause.WORKER_ERROR, weight=Weight.OWN, what=short(text))


def _memory(text: str, found: Finding) -> Finding:
    """Say how much memory was wanted and how much was free, as far as torch told."""
    match = next((m for p in ERRORS if p.kind == "cuda-oom" and (m := p.regex.search(text))), None)
    groups = match.groupdict() if match else {}
    free = groups.get("free") or groups.get("left")
    parts = [f"{groups['wanted']} wanted"] if groups.get("wanted") else []
    parts += [f"{free} free"] if free else []
    what = f"CUDA out of memory ({', '.join(parts)})" if parts else "CUDA out of memory"
    return Finding(
        kind=found.kind, cause=found.cause, weight=found.weight, what=what, advice=found.advice
    )
