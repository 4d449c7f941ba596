"""The words for why an attempt ended. Pure."""

from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    NOTICE = "notice, saved"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    NODE_FAILURE = "node failure"
    NODE_CHECK = "node check"
    LAUNCH = "launch failure"
    GPU_FAILURE = "GPU failure"
    FABRIC = "network error"
    HANG = "hang"
    OUT_OF_MEMORY = "out of memory"
    GPU_MEMORY = "out of GPU memory"
    DISK_FULL = "disk full"
    WORKER_ERROR = "worker error"
    CHECKPOINT = "no usable checkpoint"
    CONFIGURATION = "configuration error"
    NO_RDMA = "no RDMA"
    NO_PROGRESS = "no progress"
    RESIZED = "resized"
    CANCELLED = "cancelled"
    GONE = "gone without a word"
