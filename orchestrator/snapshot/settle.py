"""Point a plan at the snapshot: the script, the files named in arguments, the import path."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import SpecError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.snapshot.tree import Tree

_PATH = "PYTHONPATH"


def settle(
    plan: LaunchPlan, tree: Tree, *, script: Path, imports: Iterable[str], workdir: str
) -> LaunchPlan:
    """Return ``plan`` with what the snapshot holds taken from there.

    The working directory stays, unless ``workdir`` is "snapshot": data and outputs are named
    relative to it, and they are not part of the program.

    Args:
        plan: The plan of a script, with live paths.
        tree: The files that the run keeps.
        script: The script, without links.
        imports: Folders that modules are imported from besides: the caller's PYTHONPATH, editable
            installs. Those in the snapshot go first, so that they win.
        workdir: The job's `code.workdir`.

    Raises:
        SpecError: The working directory is to be in the snapshot and has no copy there.
    """
    to = _Moved(tree, RunLayout(Path(plan.run_dir)).code, base=plan.workdir)
    program = (str(to.place / script.relative_to(tree.root)), *map(to.argument, plan.program[1:]))
    env = dict(plan.env)
    if _PATH in env:
        env[_PATH] = ":".join(to.folder(entry) or entry for entry in env[_PATH].split(":"))
    roots = [moved for entry in imports if (moved := to.folder(entry)) is not None]
    return dataclasses.replace(
        plan,
        program=program,
        env=tuple(env.items()),
        python_path=(*dict.fromkeys(roots), *plan.python_path),
        workdir=_workdir(plan.workdir, to) if workdir == "snapshot" else plan.workdir,
    )


def _workdir(live: str, to: "_Moved") -> str:
    moved = to.folder(live)
    if moved is None:
        raise SpecError(
            f"code.workdir: nothing of the working directory {live} is kept (the snapshot is of"
            f" {to.tree.root}); set `workdir:` to a folder there, or leave code.workdir out"
        )
    return moved


@dataclasses.dataclass(frozen=True, slots=True)
class _Moved:
    """Where live paths, relative to ``base``, lie in the snapshot at ``place``."""

    tree: Tree
    place: Path
    base: str

    def folder(self, entry: str) -> str | None:
        """Return the copy of a folder; an empty entry of a path is the working directory."""
        name = self.tree.inside(os.path.join(self.base, entry or "."))  # noqa: PTH118
        if name is None or not self.tree.holds_folder(name):
            return None
        return str(self.place) if name == "." else str(self.place / name)

    def argument(self, word: str) -> str:
        """Return an argument: the copy of the file that it names (also as `key=file`), or itself.

        Only a file that is kept: a folder may be one to write into.
        """
        if moved := self._file(word):
            return moved
        key, equals, value = word.partition("=")
        moved = self._file(value) if equals else None
        return f"{key}={moved}" if moved else word

    def _file(self, text: str) -> str | None:
        if "/" not in text and "." not in text:  # a word such as `llama`, whatever lies there
            return None
        name = self.tree.inside(os.path.join(self.base, text))  # noqa: PTH118
        entry = self.tree.entries.get(name) if name is not None else None
        if entry is None or (entry.target is not None and entry.target.startswith("/")):
            return None
        live = os.path.join(self.base, text)  # noqa: PTH118
        return str(self.place / str(name)) if os.path.isfile(live) else None  # noqa: PTH113
