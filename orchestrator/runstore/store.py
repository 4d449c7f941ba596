"""The run directory on disk: the only writer of what fsdpq itself keeps there.

Events are appended with one write() a line, everything else appears by rename or by an exclusive
create, so a process that is killed anywhere leaves no half-written file.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import RunError
from orchestrator.json_lines import append_line, objects
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout

# The metrics of ten million steps have more, the events of no run that lives.
MOST_BYTES = 256 << 20
_EVENTS_BYTES = 8 << 20


def create(
    layout: RunLayout, files: Mapping[str, str], *, fill: Callable[[Path], None] = lambda _: None
) -> None:
    """Create the run directory with ``files`` in it, whole or not at all.

    Args:
        layout: Its name.
        files: Text by name.
        fill: Puts more into the directory before it gets its name.

    Raises:
        RunError: The name is taken, or the place cannot be written.
    """
    parent = layout.root.parent
    draft = parent / f".{layout.name}.new-{_unique()}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700)
        for folder in (layout.attempts, layout.checkpoints, layout.claims, layout.submitit):
            (draft / folder.name).mkdir(mode=0o700)
        for name, text in files.items():
            write_private(draft / name, text)
        fill(draft)
        _put_in_place(draft, layout)
    except OSError as problem:
        raise RunError(f"{layout.root}: cannot be created: {problem}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _put_in_place(draft: Path, layout: RunLayout) -> None:
    """Rename ``draft`` to the run directory; a rename onto an empty one would succeed, so look."""
    if not layout.root.exists() and not layout.root.is_symlink():
        draft.rename(layout.root)
        return
    raise RunError(
        f"{layout.root}: there is a run of this name already. Look at it with `fsdpq status"
        f" {layout.name}`, restart it with `fsdpq requeue {layout.name}`, which keeps the job file"
        " that it was submitted with, or give this one another name with `--set name=...`"
    )


def discard(layout: RunLayout) -> None:
    """Remove a run directory whose job the scheduler refused."""
    shutil.rmtree(layout.root, ignore_errors=True)


def write_private(path: Path, text: str) -> None:
    """Create ``path`` with ``text``, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError:  # no space: an empty claim would bind all watchers, an empty draft the next one
        path.unlink(missing_ok=True)
        raise


def replace(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` so that readers see the old file or the new one."""
    draft = path.with_name(f".{path.name}.new-{_unique()}")
    write_private(draft, text)
    draft.replace(path)


def _unique() -> str:
    """Return a suffix that no other process uses, on this node or another, also not a dead one."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def find(run: str, *, runs: Path) -> RunLayout:
    """Return the run called ``run``: a name below ``runs``, or the path of a run directory.

    Raises:
        RunError: There is none.
    """
    for path in (runs / run, Path(run)):
        layout = RunLayout(path.absolute())
        if _is_run(layout):
            return layout
    known = ", ".join(layout.name for layout in all_runs(runs)) or "none"
    raise RunError(f"there is no run {run!r} in {runs}. Runs there: {known}")


def all_runs(runs: Path) -> list[RunLayout]:
    """Return the runs below ``runs``, by name."""
    try:
        found = names(runs)
    except OSError:
        return []
    layouts = (RunLayout(runs.absolute() / name) for name in found)
    return [layout for layout in layouts if _is_run(layout)]


def names(runs: Path) -> list[str]:
    """Return the names below ``runs`` that may be runs, sorted.

    Raises:
        OSError: The directory cannot be listed.
    """
    found = sorted(os.listdir(runs))  # noqa: PTH208 (sorting Paths costs ten times as much)
    return [name for name in found if not name.startswith(".")]


def _is_run(layout: RunLayout) -> bool:
    """Return whether ``layout`` is a run that this user may read; others' runs are private."""
    try:
        return layout.plan.is_file()
    except PermissionError:
        return False


def attempt_numbers(layout: RunLayout) -> list[int]:
    """Return the numbers of the run's attempts, in order.

    Raises:
        OSError: Their folder cannot be listed.
    """
    return layout.attempt_numbers(path.name for path in layout.attempts.iterdir())


def load_plan(layout: RunLayout) -> LaunchPlan:
    """Return the plan that the run was submitted with.

    Raises:
        RunError: It is missing or does not read.
    """
    try:
        return LaunchPlan.from_json(json.loads(layout.plan.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as problem:
        raise RunError(f"{layout.plan}: cannot be read: {problem}") from None


def event(kind: str, **facts: Any) -> str:
    """Return a line of the event log that says ``facts`` now."""
    return json.dumps({"at": round(time.time(), 3), "kind": kind, **facts}) + "\n"


def append(layout: RunLayout, kind: str, **facts: Any) -> None:
    """Append one event: what fsdpq saw, decided or did.

    Raises:
        RunError: It cannot be written, or not to its end.
    """
    try:
        whole = append_line(layout.events, event(kind, **facts).encode())
    except OSError as problem:
        raise RunError(f"{layout.events}: cannot be written: {problem.strerror}") from None
    if not whole:
        raise RunError(f"{layout.events}: cannot be written: {os.strerror(errno.ENOSPC)}")


def events(layout: RunLayout) -> list[dict[str, Any]]:
    """Return the run's events, oldest first; what is no event, or was cut off, is passed over."""
    lines = read_lines(layout.events, most=_EVENTS_BYTES)
    return [e for e in lines if isinstance(e.get("kind"), str) and isinstance(e.get("at"), float)]


def read_lines(path: Path, *, most: int = MOST_BYTES) -> list[dict[str, Any]]:
    """Return the JSON objects in ``path``, one a line; none where there is no file."""
    try:
        text = _text(path, most)
    except OSError:
        return []
    return objects(text.split("\n"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in ``path``; None where there is none to be had."""
    with suppress(OSError, ValueError, RecursionError):
        item = json.loads(_text(path))
        if isinstance(item, dict):
            return item
    return None


def _text(path: Path, most: int = MOST_BYTES) -> str:
    """Return what is in ``path``, its end where it is longer than anything of ours.

    Raises:
        OSError: There is no such file, or it is none: a pipe would block for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 (half the cost of a Path's)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        if found.st_size > most:
            file.seek(-most, os.SEEK_END)
        return file.read(most).decode("utf-8", errors="replace")


def mark_cancelled(layout: RunLayout, *, by: str) -> None:
    """Write the cancel mark. From here on nothing restarts the run.

    Raises:
        RunError: It cannot be written.
    """
    try:
        replace(layout.cancelled, json.dumps({"by": by, "at": round(time.time(), 3)}) + "\n")
    except OSError as problem:
        raise RunError(f"{layout.cancelled}: cannot be written: {problem.strerror}") from None


def override(layout: RunLayout, **changes: Any) -> None:
    """Keep what the next attempts do differently from the job file; they read it at their start.

    Raises:
        RunError: It cannot be written.
    """
    try:
        content = {**(read_json(layout.overrides) or {}), **changes}
        replace(layout.overrides, json.dumps(content) + "\n")
    except OSError as problem:
        raise RunError(f"{layout.overrides}: cannot be written: {problem.strerror}") from None


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` into ``folder``, which is made if need be.

    Raises:
        RunError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace(folder / name, text)
    except OSError as problem:
        raise RunError(f"{folder}: cannot be written: {problem}") from None
