"""Waiting for what another node has written: attribute caches of NFS hide it for up to 30 s."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

VISIBLE_S = 60.0
_PAUSE_S = 0.1


def wait_for(look: Callable[[], T | None], *, timeout_s: float) -> T | None:
    """Return what ``look`` finds, None if it finds nothing within ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return found
