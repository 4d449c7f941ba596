"""What touches the shared file system, as programs of their own: it may hang for ever.

python -m orchestrator.preflight.writing DIR NODE    writes, reads and deletes a small file in
                                                     DIR; prints what it saw as JSON
python -m orchestrator.preflight.writing --save PATH puts standard input there, in one piece
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import write_text

_SIZE = 1 << 20


def write_test(folder: Path, *, node: str) -> dict[str, Any]:
    """Return what writing in ``folder`` showed.

    ``free`` and ``newest`` (the size of the newest checkpoint) are in bytes, ``skew_s`` is how far
    the file system's clock is ahead of this node's, in seconds. ``error`` stands alone.
    """
    path = folder / f".preflight-{node}-{os.getpid()}"
    data = os.urandom(_SIZE)
    try:
        skew_s = _write(path, data)
        if path.read_bytes() != data:
            return {"error": "a file that was just written reads differently"}
        status = os.statvfs(folder)
    except OSError as problem:
        return {"error": f"cannot be written: {problem.strerror or problem}"}
    finally:
        with suppress(OSError):
            path.unlink()
    return {
        "free": status.f_bavail * status.f_frsize,
        "newest": newest_size(folder),
        "skew_s": skew_s,
    }


def _write(path: Path, data: bytes) -> float:
    with path.open("xb", buffering=0) as file:
        written = file.write(data)
        os.fsync(file.fileno())
        skew_s = os.fstat(file.fileno()).st_mtime - time.time()
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes were written")
    return skew_s


def newest_size(folder: Path) -> int | None:
    """Return the bytes of the newest checkpoint in ``folder``, None where there is none."""
    from orchestrator.checkpoint.listing import newest_complete  # slow to import, often not needed

    if not any(folder.glob("step-*")):
        return None
    newest = newest_complete(folder)
    if newest is None:
        return None
    return sum(file.stat().st_size for file in newest.path.rglob("*") if file.is_file())


def save(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, in one piece, into a folder that is made if need be."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(path, text, durable=False)


if __name__ == "__main__":
    os.umask(0o077)
    if sys.argv[1] == "--save":
        save(Path(sys.argv[2]), sys.stdin.read())
    else:
        print(json.dumps(write_test(Path(sys.argv[1]), node=sys.argv[2])))
