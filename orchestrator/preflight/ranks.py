"""Ranks that the pre-flight starts by itself: their environment, and waiting for them."""

import time
from collections.abc import Mapping, Sequence

from orchestrator.preflight.children import Child

# How long the others are waited for once a rank has failed: they wait for it, in vain.
GRACE_S = 10.0
# Its log is not the proof of the network that training uses, nor its error that of a worker.
_NOT_FOR_THEM = ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "TORCHELASTIC_ERROR_FILE")


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank that only checks something."""
    kept = {key: value for key, value in inherited.items() if key not in _NOT_FOR_THEM}
    return {**kept, "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}


def wait(children: Sequence[Child], deadline: float) -> float:
    """Wait until all have ended, or must have; return the deadline, sooner if one has failed.

    Deadlines are in seconds of time.monotonic().
    """
    while time.monotonic() < deadline:
        codes = [child.code for child in children]
        if None not in codes:
            break
        if any(codes):
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(0.1)
    return deadline
