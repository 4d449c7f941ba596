"""Waiting for what happens in another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], what: str, *, within_s: float) -> None:
    """Return once ``true`` is; fail with ``what`` if that takes longer than ``within_s``."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
