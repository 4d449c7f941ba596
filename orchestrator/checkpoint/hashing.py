"""Hashes files and notes which state of them it hashed; also a program of its own.

    python -m orchestrator.checkpoint.hashing PARENT FILE...

prints a line of JSON for each file that it could read, and ends with the process PARENT. It is a
process rather than threads because threads would wait for an interpreter that is busy importing
torch at each piece that they read.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

# hashlib lets go of the interpreter lock, so threads do add up; more than a few only makes one
# disk seek to and fro.
HASH_THREADS = 4
_LOOK_S = 0.2


# Device, inode, bytes, and when it last changed, in ns. A file that is replaced has another inode,
# one that is written to another time or length.
State = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Hashed:
    """The SHA-256 of a file in hexadecimal digits, and the state of the file that has it."""

    sha256: str
    state: State


def state_of(found: os.stat_result) -> State:
    """Return what tells a file from others, and from itself before and after a change. Pure."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hash_file(file).sha256


def hash_file(file: IO[bytes]) -> Hashed:
    """Return what ``file`` hashes to from its beginning, and its state before it was read.

    Raises:
        OSError: It cannot be read.
    """
    state = state_of(os.fstat(file.fileno()))
    file.seek(0)
    return Hashed(hashlib.file_digest(file, "sha256").hexdigest(), state)  # type: ignore[arg-type]


def parse(line: str) -> Hashed | None:
    """Return what a line of the program says, None if it is cut off. Pure."""
    try:
        content = json.loads(line)
        device, inode, size, mtime_ns = content["state"]
        return Hashed(str(content["sha256"]), (device, inode, size, mtime_ns))
    except (ValueError, TypeError, KeyError):
        return None


def main(argv: Sequence[str]) -> None:
    """Hash files and tell of each as soon as it is done, for as long as somebody listens."""
    parent, paths = int(argv[0]), argv[1:]
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        waiting = {pool.submit(_tell, path) for path in paths}
        while waiting:
            _, waiting = wait(waiting, timeout=_LOOK_S)
            if os.getppid() != parent:
                os._exit(0)


def _tell(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            line = json.dumps(asdict(hash_file(file)))
    except OSError:
        return  # whoever asked looks for itself, and says what is wrong
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
