"""The same program every time: what a run keeps of its code when it is submitted.

`find` looks (and is all that a dry run does), `settle` points the plan at the copy, `keep` copies.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.snapshot import copying, git, imports, own, tree
from orchestrator.snapshot import settle as settling
from orchestrator.snapshot.own import Own
from orchestrator.snapshot.tree import Tree
from orchestrator.spec.job import JobSpec

# Longer lists and differences are for the repository to tell.
_NAMES = 100
_DIFF_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A job's program.

    Attributes:
        live: Nothing is kept; every attempt runs the files as they are then.
        script: The job's script, without links; None for fsdpq's own trainer.
        tree: The program's files; None where none are kept.
        own: fsdpq's package.
    """

    live: bool
    script: Path | None
    tree: Tree | None
    own: Own

    @property
    def summary(self) -> str:
        """One line on what is kept; empty where there is no script or nothing of it is kept."""
        if self.tree is None:
            return ""
        at = f" at {self.tree.head.commit[:12]}" if self.tree.head.commit else ""
        count, size = len(self.tree.entries), self.tree.size / 2**20
        return f"it keeps its program: {count} files, {size:.1f} MiB, of {self.tree.root}{at}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What may be a mistake."""
        return tuple(f"code: {note}" for note in self.tree.notes) if self.tree else ()


def find(spec: JobSpec) -> Code:
    """Return the program of the job. Reads, never writes.

    Raises:
        SpecError: It is too large, or the job's `code:` does not fit it.
    """
    # As Python does: modules beside a script are looked for where its links lead.
    script = Path(os.path.realpath(spec.script)) if spec.script is not None else None
    if script is None and (spec.code.extras or spec.code.exclude):
        raise SpecError("code: extras and exclude belong to `script:`, and there is none")
    kept = script if not spec.code.live else None
    found = tree.find(kept, spec.code) if kept is not None else None
    return Code(live=spec.code.live, script=script, tree=found, own=own.find())


def settle(plan: LaunchPlan, code: Code, spec: JobSpec, *, caller_path: str) -> LaunchPlan:
    """Return ``plan`` with the program taken from the run directory.

    Args:
        plan: The plan with live paths.
        code: The program.
        spec: The job.
        caller_path: PYTHONPATH where the job is submitted; jobs inherit it.

    Raises:
        SpecError: The run directory cannot stand in an import path.
    """
    if code.live:
        return plan
    layout = RunLayout(Path(plan.run_dir))
    if ":" in str(layout.root):
        raise SpecError(
            f"--runs: {str(layout.root)!r} contains ':', which separates the folders in PYTHONPATH;"
            " choose another directory, or run the live files with --live-code"
        )
    plan = dataclasses.replace(plan, python_path=(str(layout.fsdpq),))
    if code.tree is None or code.script is None:
        return plan
    inherited = dict(plan.env).get("PYTHONPATH", caller_path)
    entries = inherited.split(":") if inherited else []
    return settling.settle(
        plan,
        code.tree,
        script=code.script,
        imports=[*entries, *_installed(plan)],
        workdir=spec.code.workdir,
    )


def _installed(plan: LaunchPlan) -> list[str]:
    # The Python of a container has nothing to do with one of that name here.
    return [] if plan.container is not None else imports.installed_from(plan.python)


def keep(code: Code, folder: Path) -> None:
    """Copy the program into the new run directory ``folder`` and write down where it comes from.

    Raises:
        RunError: A file cannot be copied.
        OSError: The directory cannot be written.
    """
    layout = RunLayout(folder)
    record: dict[str, Any] = {"mode": "live" if code.live else "snapshot", **_source(code)}
    if code.tree is not None:
        record["sha256"] = copying.copy(code.tree.root, code.tree.entries, layout.code)
    if not code.live:
        copying.copy(code.own.root, code.own.entries, layout.fsdpq)
    record |= _difference(code, layout)
    record["fsdpq"] = {
        "version": code.own.version,
        "commit": code.own.head.commit,
        "root": str(code.own.root),
    }
    _write(layout.code_record, (json.dumps(record, indent=2) + "\n").encode())


def _source(code: Code) -> dict[str, Any]:
    """Return where the program comes from and what was left out."""
    if code.tree is None:
        place = git.work_tree(code.script.parent) if code.script is not None else None
        head = git.head(place) if place is not None else git.Head()
        root = str(place or code.script.parent) if code.script is not None else None
        return {"script": _text(code.script), "root": root, **dataclasses.asdict(head)}
    found = code.tree
    return {
        "script": _text(code.script),
        "kind": found.kind,
        "root": str(found.root),
        **dataclasses.asdict(found.head),
        "files": len(found.entries),
        "bytes": found.size,
        **dict(_lists(found)),
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _lists(found: Tree) -> Iterator[tuple[str, Any]]:
    for name in ("excluded", "missing", "live_links", "untracked", "uninitialised"):
        names = getattr(found, name)
        yield name, {"count": len(names), "first": list(names[:_NAMES])}


def _difference(code: Code, layout: RunLayout) -> dict[str, Any]:
    """Keep what differs from the commit; say whether anything does (null: it cannot be told)."""
    root = _repository(code)
    if root is None:
        return {"dirty": None}
    if code.tree is not None and code.tree.head.commit is None:
        return {"dirty": True, "diff_problem": "there is no commit yet"}
    try:
        text = git.diff(root, code.tree.submodules if code.tree is not None else ())
    except git.GitError as problem:
        return {"dirty": None, "diff_problem": str(problem)}
    if text:
        _write(layout.code_diff, text[:_DIFF_BYTES])
    return {"dirty": bool(text), "diff_bytes": len(text)}


def _repository(code: Code) -> Path | None:
    if code.tree is not None:
        return code.tree.root if code.tree.kind == "git" else None
    return git.work_tree(code.script.parent) if code.script is not None else None


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


__all__ = ["Code", "find", "keep", "settle"]
