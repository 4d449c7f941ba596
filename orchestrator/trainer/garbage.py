"""Python's garbage collection, when all ranks have time for it."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_STEPS = 50


@contextmanager
def collect_seldom() -> Iterator[Callable[[int], None]]:
    """Turn the automatic collection off; yield what is to be called after each step.

    By itself Python collects at another moment on each rank, and at each of them all ranks wait.
    """
    gc.collect()
    gc.disable()

    def collect(step: int) -> None:
        if step % _EVERY_STEPS == 0:
            gc.collect(1)

    try:
        yield collect
    finally:
        gc.enable()
