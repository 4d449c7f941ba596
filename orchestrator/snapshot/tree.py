"""Which files belong to a job's program: found and measured, nothing copied yet."""

import os
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import SpecError
from orchestrator.snapshot import git, walk
from orchestrator.snapshot.patterns import any_of
from orchestrator.spec.code import CodeSpec

_MODULES = (".py", ".so")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or link of the snapshot.

    Attributes:
        size: Bytes, as they were when it was looked at.
        target: What a link says in the snapshot; None for a file.
    """

    size: int
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A program's files.

    Attributes:
        root: The top of the repository, or the script's folder; no links in it.
        kind: How they were found.
        entries: By path relative to the root.
        folders: Those that hold an entry, at any depth; "." is the root.
        head: What is checked out.
        missing: Tracked, and not there.
        excluded: Left out as `code.exclude` says.
        live_links: Links to folders outside, which are kept and lead to what is there then.
        untracked: Python modules beside tracked ones that git does not track.
        uninitialised: Submodules without files.
        notes: What may be a mistake.
    """

    root: Path
    kind: Literal["git", "folder"]
    entries: Mapping[str, Entry] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    head: git.Head = field(default_factory=git.Head)
    missing: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    live_links: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    uninitialised: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries.values())

    @property
    def submodules(self) -> list[str]:
        """The folders that are repositories of their own."""
        if ".gitmodules" not in self.entries:
            return []
        return [n for n in sorted(self.folders - {"."}) if os.path.lexists(self.root / n / ".git")]

    def inside(self, path: str) -> str | None:
        """Return where ``path`` lies below the root, "." for the root; None for one outside."""
        folder, last = os.path.split(path.rstrip("/"))
        whole = os.path.realpath(path)
        # A link is a file of the program under its own name, wherever it leads.
        named = last not in ("", ".", "..")
        itself = os.path.join(os.path.realpath(folder), last) if named else whole  # noqa: PTH118
        prefix = str(self.root).rstrip("/") + "/"
        for real in (itself, whole):
            if real == str(self.root):
                return "."
            if real.startswith(prefix):
                return real.removeprefix(prefix)
        return None

    def holds_folder(self, name: str) -> bool:
        """Return whether something in the folder ``name`` is kept."""
        entry = self.entries.get(name)
        return name in self.folders or (entry is not None and entry.target is not None)


def find(script: Path, spec: CodeSpec) -> Tree:
    """Return the files of the program that ``script`` (without links) begins.

    Raises:
        SpecError: They are too many or too large, or the job's patterns do not fit.
    """
    names, tree = _listed(script)
    own = str(script.relative_to(tree.root))
    extras = [name for pattern in spec.extras for name in walk.extra_files(tree.root, pattern)]
    wanted = list(dict.fromkeys([*names, own, *extras]))
    excluded = [name for name in wanted if any_of(spec.exclude, name)]
    if own in excluded:
        raise SpecError(f"code.exclude: takes away the script itself ({own})")
    left = set(excluded)
    tree = _measured(tree, [name for name in wanted if name not in left], tuple(excluded))
    if own not in tree.entries:
        raise SpecError(f"script: {script} cannot be kept; is it a file?")
    _check_size(tree, spec)
    return replace(tree, notes=(*tree.notes, *_notes(tree)))


def _listed(script: Path) -> tuple[list[str], Tree]:
    """Return the names of the program's files, and a tree that holds none of them yet."""
    place = git.work_tree(script.parent)
    if place is None:
        return _by_folder(script.parent)
    try:
        root = git.toplevel(script.parent)
        if root is None or not script.is_relative_to(root):  # core.worktree may lie elsewhere
            return _by_folder(script.parent)
        names = git.tracked(root)
    except git.GitError as problem:
        names, tree = _by_folder(place)
        return names, replace(tree, head=git.head(place), notes=(_without_git(problem, place),))
    head = git.head(root)
    tree = Tree(root=root, kind="git", head=head if head.commit else git.asked_head(root))
    own = str(script.relative_to(root))
    if own not in set(names):
        beside, _ = _by_folder(script.parent)
        folder = own.rpartition("/")[0]
        names += [f"{folder}/{name}" if folder else name for name in beside]
        note = f"git does not track {own}; it is kept with the Python files of its folder"
        return names, replace(tree, notes=(note,))
    return names, tree


def _without_git(problem: git.GitError, place: Path) -> str:
    allow = f" (`git config --global --add safe.directory {shlex.quote(str(place))}` allows it)"
    why = f"{problem}{allow if 'dubious ownership' in str(problem) else ''}"
    return f"{why}; so the run keeps the Python and small configuration files below {place}"


def _by_folder(root: Path) -> tuple[list[str], Tree]:
    return walk.program_files(root), Tree(root=root, kind="folder")


def _measured(tree: Tree, names: Sequence[str], excluded: tuple[str, ...]) -> Tree:
    """Return ``tree`` with an entry for each of ``names`` that is there."""
    kinds = {name: _kind(tree.root / name) for name in names}
    links = {name for name, (kind, _) in kinds.items() if kind == "link"}
    # A folder that git knows may be a link in the work tree now: what was below it is not there.
    gone = {n for n in kinds if any(up in links for up in _parents(n))} if links else set()
    entries = {
        name: Entry(size)
        for name, (kind, size) in kinds.items()
        if kind in ("file", "link") and name not in gone
    }
    tree = replace(tree, entries=entries, folders=_folders(entries), excluded=excluded)
    entries |= {name: _link(tree, name) for name in links - gone}
    return replace(
        tree,
        entries=entries,
        missing=tuple(name for name in names if kinds[name][0] == "none" or name in gone),
        live_links=tuple(n for n in sorted(links - gone) if _is_live(entries[n])),
        uninitialised=tuple(name for name in names if kinds[name][0] == "folder"),
        untracked=tuple(_untracked(tree)) if tree.kind == "git" else (),
    )


def _kind(path: Path) -> tuple[Literal["file", "link", "folder", "none"], int]:
    """Return what lies at ``path``, and its size; what cannot be copied is none."""
    try:
        found = path.lstat()
    except OSError:
        return "none", 0
    if stat.S_ISREG(found.st_mode):
        return "file", found.st_size
    if stat.S_ISLNK(found.st_mode):
        return "link", 0
    return ("folder" if stat.S_ISDIR(found.st_mode) else "none"), 0


def _folders(names: Iterable[str]) -> frozenset[str]:
    return frozenset({".", *(up for name in names for up in _parents(name))})


def _is_live(entry: Entry) -> bool:
    return entry.target is not None and entry.target.startswith("/")


def _parents(name: str) -> Iterable[str]:
    words = name.split("/")
    return ("/".join(words[:count]) for count in range(1, len(words)))


def _link(tree: Tree, name: str) -> Entry:
    """Return a link as it is kept.

    One to what is kept too stays a link inside the snapshot. One to another file becomes a copy of
    it. One to another folder (data, mostly) leads to where it led.
    """
    place = tree.root / name
    real = os.path.realpath(place)
    inside = tree.inside(real)
    if inside is not None and (inside in tree.entries or tree.holds_folder(inside)):
        return Entry(0, os.path.relpath(inside, os.path.dirname(name) or "."))  # noqa: PTH120
    if os.path.isfile(real):  # noqa: PTH113
        return Entry(os.path.getsize(real))  # noqa: PTH202
    return Entry(0, real)


def _untracked(tree: Tree) -> list[str]:
    """Return the modules that lie beside tracked ones and are not kept."""
    folders = {name.rpartition("/")[0] for name in tree.entries if name.endswith(".py")}
    known = tree.entries.keys() | set(tree.excluded)
    found: list[str] = []
    for folder in sorted(folders):
        try:
            with os.scandir(tree.root / folder) as found_here:
                names = [entry.name for entry in found_here if entry.is_file()]
        except OSError:
            continue
        paths = (f"{folder}/{name}" if folder else name for name in names)
        found += [path for path in paths if path.endswith(_MODULES) and path not in known]
    return sorted(found)


def _notes(tree: Tree) -> Iterable[str]:
    """Yield what may be a mistake, though only the program can tell."""
    if tree.untracked:
        yield (
            f"the run does not keep what git does not track: {some(tree.untracked)}; if the program"
            " imports it, `git add` it or name it in the job file: `code: {extras: [...]}`"
        )
    if tree.uninitialised:
        yield (
            f"submodules without files: {some(tree.uninitialised)};"
            " `git submodule update --init` gets them"
        )


def some(names: Sequence[str]) -> str:
    """Return the first of ``names`` for a message, whatever characters they hold."""
    text = ", ".join(n if n.isprintable() else ascii(n) for n in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{text} and {more} more" if more > 0 else text


def _check_size(tree: Tree, spec: CodeSpec) -> None:
    count, size = len(tree.entries), tree.size
    if count <= spec.max_files and size <= spec.max_mib << 20:
        return
    largest = sorted(tree.entries, key=lambda name: tree.entries[name].size, reverse=True)
    named = [f"{_printable(n)} ({tree.entries[n].size / 2**20:.1f} MiB)" for n in largest[:_NAMED]]
    raise SpecError(
        f"code: the run would keep {count} files with {size / 2**20:.1f} MiB of {tree.root};"
        f" allowed are {spec.max_files} (code.max_files) with {spec.max_mib} MiB (code.max_mib)."
        f" The largest: {', '.join(named)}. Leave out what the program does not need with"
        " `code: {exclude: [...]}`, raise the limit, or run the live files with --live-code"
    )


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)
