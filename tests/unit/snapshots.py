"""What a run would keep of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.snapshot import copying, tree
from orchestrator.snapshot.tree import Tree
from orchestrator.spec.code import CodeSpec


def find(script: Path, **code: Any) -> Tree:
    """Return what would be kept, with these keys of `code:` in the job file."""
    return tree.find(script.resolve(), CodeSpec(**code))


def kept(found: Tree, to: Path) -> dict[str, str]:
    """Copy the tree and return what was copied."""
    copying.copy(found.root, found.entries, to)
    files = [path for path in to.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(to)): path.read_text() for path in files}
