"""Patterns of `code.extras` and `code.exclude`. Pure."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def matches(pattern: str, path: str) -> bool:
    """Return whether ``pattern`` stands for ``path`` or for a folder above it.

    >>> matches("data", "data/a/b.bin"), matches("*.py", "a/b.py"), matches("**/*.py", "a/b.py")
    (True, False, True)
    """
    return _matches(pattern.split("/"), path.split("/"))


def _matches(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern:
        return True
    if not path:
        return False
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or _matches(pattern, path[1:])
    return fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


def any_of(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of ``patterns`` stands for ``path``."""
    return any(matches(pattern, path) for pattern in patterns)


def fixed_part(pattern: str) -> str:
    """Return the folders that a pattern begins with, up to its first wildcard.

    >>> fixed_part("a/b/*.py"), fixed_part("a/b.py"), fixed_part("*.py")
    ('a/b', 'a/b.py', '')
    """
    words: list[str] = []
    for word in pattern.split("/"):
        if any(sign in word for sign in "*?["):
            break
        words.append(word)
    return "/".join(words)
