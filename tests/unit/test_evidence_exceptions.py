"""What single exceptions mean. Sources stand beside the patterns."""

from __future__ import annotations

import pytest

from orchestrator.evidence import errors
from orchestrator.rundir.attempt import Weight
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
