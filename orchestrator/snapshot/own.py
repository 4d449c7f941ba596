"""fsdpq itself as a program: for `train:` jobs it is the one that must not change half-way."""

from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.snapshot import git, walk
from orchestrator.snapshot.tree import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The package of this fsdpq.

    Attributes:
        root: The folder that holds the package: site-packages, or a checkout.
        entries: Its files, relative to the root.
        head: What is checked out; empty for an installed wheel.
    """

    version: str
    root: Path
    entries: dict[str, Entry]
    head: git.Head


def find() -> Own:
    """Return the package that this process runs."""
    package = Path(orchestrator.__file__).resolve().parent
    names = walk.package_files(package.parent, package.name)
    entries = {name: Entry((package.parent / name).stat().st_size) for name in names}
    is_checkout = (package.parent / ".git").exists()
    head = git.head(package.parent) if is_checkout else git.Head()
    return Own(version=orchestrator.__version__, root=package.parent, entries=entries, head=head)
