"""Has the files of a save written to the node's own copy as well, and says why not if not."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.trainer.local_copy import LocalCopy
from orchestrator.trainer.step_copy import StepCopy


@contextlib.contextmanager
def beside(local: LocalCopy | None, folder: Path, *, nbytes: int) -> Iterator[StepCopy | None]:
    """Give what takes copies of the files of a save, None if none are wanted.

    Args:
        local: Where they go.
        folder: What the save writes into.
        nbytes: How large the files of this rank are together.
    """
    if local is None:
        yield None
        return
    copy = local.begin(folder.name, nbytes=nbytes)
    try:
        yield copy
    finally:
        if problem := copy.close():
            step = folder.name.partition(".")[0].removeprefix("step-")
            tell(f"no copy of step {step} in {local.directory}, the save goes on: {problem}")


def tell(text: str) -> None:
    """Say something in the log, with the number of this rank; each node has a word of its own."""
    print(f"fsdpq: rank {os.environ.get('RANK', '0')}: {text}", file=sys.stderr, flush=True)
