"""Ask git what it tracks, and what differs from the commit.

Nothing of the repository's own is run: no hooks, filters, external diffs, monitors or pagers. The
caller's GIT_* variables say nothing about the job's repository and are left out.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60.0
_NOT_HERE = ("not a git repository", "must be run in a work tree")
# `filter.lfs.required` would fail where git-lfs is missing; files are compared as they lie there.
_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "filter.lfs.process=",
    "filter.lfs.clean=",
    "filter.lfs.required=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class GitError(Exception):
    """Git is missing, refuses, or gives no answer; the text says which, in git's words."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is checked out; None where it cannot be told, or where there is no commit yet."""

    commit: str | None = None
    branch: str | None = None


def environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a git command."""
    kept = {name: value for name, value in caller.items() if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def work_tree(folder: Path) -> Path | None:
    """Return the nearest folder at or above ``folder`` with a `.git` in it, without asking git."""
    return next((p for p in (folder, *folder.parents) if os.path.lexists(p / ".git")), None)


def toplevel(folder: Path) -> Path | None:
    """Return the top of the work tree that git sees ``folder`` in; None where it sees none.

    Raises:
        GitError: Git cannot say.
    """
    try:
        said = _git(folder, ["rev-parse", "--show-toplevel"])
    except GitError as problem:
        if any(words in str(problem) for words in _NOT_HERE):
            return None
        raise
    return Path(os.path.realpath(os.fsdecode(said.removesuffix(b"\n"))))


def tracked(root: Path) -> list[str]:
    """Return the paths that git tracks below ``root``, those of its submodules too.

    A submodule that is not initialised is a path of its own; there is a folder at it.

    Raises:
        GitError: Git cannot say.
    """
    said = _git(root, ["ls-files", "-z", "--cached", "--recurse-submodules"])
    return list(dict.fromkeys(os.fsdecode(name) for name in said.split(b"\0") if name))


def diff(root: Path, submodules: Iterable[str] = ()) -> bytes:
    """Return what differs from the commit in the tracked files; the files themselves are kept.

    Git could go into ``submodules`` by itself, but would run their external diffs there.

    Raises:
        GitError: Git cannot say, or there is no commit yet.
    """
    return b"".join([_diff(root, ""), *(_diff(root / name, f"{name}/") for name in submodules)])


def _diff(root: Path, prefix: str) -> bytes:
    options = ["--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"]
    prefixes = [f"--src-prefix=a/{prefix}", f"--dst-prefix=b/{prefix}"]
    return _git(root, ["diff", *options, *prefixes, "HEAD", "--"])


def _git(folder: Path, words: Sequence[str]) -> bytes:
    """Run git in ``folder`` and return what it printed."""
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        done = subprocess.run(  # noqa: S603 (an argument list of ours, no shell)
            ["git", "--no-pager", *settings, *words],  # noqa: S607 (the user's own git)
            cwd=folder,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"git gave no answer in {_TIMEOUT_S:.0f} s") from None
    except OSError as problem:
        raise GitError(f"git cannot be run: {problem.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise GitError(" ".join(said.splitlines()[0:1]) or f"git exited with {done.returncode}")
    return done.stdout


def asked_head(root: Path) -> Head:
    """Return what is checked out at ``root`` as git says it, which knows every form of a ref."""
    return Head(
        commit=_one(root, ["rev-parse", "--verify", "--quiet", "HEAD"]),
        branch=_one(root, ["symbolic-ref", "--quiet", "--short", "HEAD"]),
    )


def _one(root: Path, words: Sequence[str]) -> str | None:
    with suppress(GitError):
        return os.fsdecode(_git(root, words)).strip() or None
    return None


def head(root: Path) -> Head:
    """Return what is checked out at ``root``, from git's own files and without a process."""
    with suppress(OSError, ValueError):
        folder = _git_folder(root)
        text = _read(folder / "HEAD")
        if not text.startswith("ref: "):
            return Head(commit=_commit(text))
        name = text.removeprefix("ref: ")
        return Head(commit=_resolve(folder, name), branch=name.removeprefix("refs/heads/"))
    return Head()


def _git_folder(root: Path) -> Path:
    """Return the folder of git's files: `.git` is a file in submodules and further work trees."""
    place = root / ".git"
    if place.is_dir():
        return place
    return root / _read(place).removeprefix("gitdir: ")


def _resolve(folder: Path, name: str) -> str | None:
    common = folder
    with suppress(OSError):
        common = folder / _read(folder / "commondir")
    for place in (folder, common):
        with suppress(OSError):
            return _commit(_read(place / name))
    with suppress(OSError):
        for line in (common / "packed-refs").read_text(errors="replace").splitlines():
            commit, _, of = line.partition(" ")
            if of == name:
                return _commit(commit)
    return None


def _commit(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(4096).strip()
