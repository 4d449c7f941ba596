"""Lines in the files that say of a notice: one for the ranks of a node, one for the run."""

import os
from pathlib import Path


def append(path: Path, line: str) -> None:
    """Append ``line`` in one write: node.sh may append at the same time.

    Raises:
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
