"""Hashes files and notes which state of them it hashed; also a program of its own.

    python -m orchestrator.checkpoint.hashing PARENT FOLDER NAME...

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

# hashlib lets go of the interpreter lock, so threads do add up; more than a few only makes one
# disk seek to and fro.
HASH_THREADS = 4
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Hashed:
    """The SHA-256 of a file in hexadecimal digits, and the state of the file that has it.

    A file that is replaced has another inode, one that is written to another time or length.
    """

    name: str
    sha256: str
    inode: int
    size: int
    mtime_ns: int

    def is_of(self, path: Path) -> bool:
        """Return whether ``path`` still is in that state."""
        try:
            found = path.stat()
        except OSError:
            return False
        return (found.st_ino, found.st_size, found.st_mtime_ns) == (
            self.inode,
            self.size,
            self.mtime_ns,
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_file(folder: Path, name: str) -> Hashed:
    """Return what ``name`` in ``folder`` hashes to, by its state before it was read.

    Raises:
        OSError: It cannot be read.
    """
    with (folder / name).open("rb") as file:
        state = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Hashed(name, digest, state.st_ino, state.st_size, state.st_mtime_ns)


def parse(line: str) -> Hashed | None:
    """Return what a line of the program says, None if it is cut off. Pure."""
    try:
        return Hashed(**json.loads(line))
    except (ValueError, TypeError):
        return None


def main(argv: Sequence[str]) -> None:
    """Hash files and tell of each as soon as it is done, for as long as somebody listens."""
    parent, folder, names = int(argv[0]), Path(argv[1]), argv[2:]
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        waiting = {pool.submit(_tell, folder, name) for name in names}
        while waiting:
            _, waiting = wait(waiting, timeout=_LOOK_S)
            if os.getppid() != parent:
                os._exit(0)


def _tell(folder: Path, name: str) -> None:
    try:
        line = json.dumps(asdict(hash_file(folder, name)))
    except OSError:
        return  # whoever asked looks for itself, and says what is wrong
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
