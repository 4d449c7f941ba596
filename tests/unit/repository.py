"""A git repository with a training script in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

WHO = (
    "-c",
    "user.name=Alice",
    "-c",
    "user.email=alice@example.org",
    "-c",
    "protocol.file.allow=always",
)


def git(folder: Path, *words: str) -> str:
    """Run git in ``folder`` without what the caller's environment says, and return its answer."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *WHO, *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(root: Path, **files: str) -> Path:
    """Make a repository at ``root`` with one commit of ``files`` (`a__b` is a/b.py)."""
    root.mkdir(parents=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        write(root, name.replace("__", "/") + ".py", text)
    commit(root)
    return root


def write(root: Path, name: str, text: str = "") -> Path:
    """Write a file below ``root``."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def commit(root: Path) -> None:
    """Commit all there is."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message=x")
