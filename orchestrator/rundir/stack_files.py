"""Brings the stacks of a rank from its node's own disk to the attempt's folder.

The rank's own runtime does it, and where that no longer runs (a thread that holds the interpreter
for ever) the node's monitor.
"""

from pathlib import Path

from orchestrator.checkpoint.durable import write_text


def publish(source: Path, target: Path) -> bool:
    """Replace ``target`` by what is in ``source``; return whether there was anything.

    Written anew and renamed, so that other nodes see all of it at once; closing it is what makes
    NFS send it. The folder is made if need be.

    Raises:
        OSError: It cannot be written.
    """
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    if not text:
        return False
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(target, text, durable=False)
    target.chmod(0o600)
    return True
