"""Writes that survive a crash: all of a file or nothing of it, on disk before it has its name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sync_directory(path: Path) -> None:
    """Make the names in the directory ``path`` durable.

    Some file systems refuse fsync on a directory; their names are durable by other means, or not
    at all, and a save must not fail for that.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace the file ``path`` in one piece, by way of a temporary file beside it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_new(temporary, text, durable=durable)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, data: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace the file ``path`` with one line of JSON, in one piece."""
    write_text(path, json.dumps(data) + "\n", durable=durable)


def write_json_once(path: Path, data: Mapping[str, Any]) -> bool:
    """Write one line of JSON unless ``path`` is there; return whether it was written.

    Of several writers exactly one wins, on a shared file system too: link(2) is atomic on NFS,
    O_EXCL was not always.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    _write_new(temporary, json.dumps(data) + "\n", durable=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _write_new(path: Path, text: str, *, durable: bool) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
