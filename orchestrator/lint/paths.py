"""Which file system of a site a path lies on. Pure."""

import re
from collections.abc import Mapping

from orchestrator.profile import StorageProfile

# Every node has its own of these, whatever the site; $TMPDIR and the like are made for a job.
_EVERYWHERE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_PARTS = re.compile(r"\$\{?(?P<name>\w+)\}?|<[^>]*>|\{(?P<one_of>[^}]*)\}|\*|[^$<{*]+|.")
_OF_USER = frozenset({"USER", "LOGNAME", "PROJECT", "GROUP"})


def storage_of(
    path: str, storage: Mapping[str, StorageProfile], environ: Mapping[str, str]
) -> tuple[str, StorageProfile] | None:
    """Return the file system that ``path`` lies on, with its key; None where nothing is known.

    A key may hold $NAME, from ``environ`` or, for the user's own names, any one part of a path;
    <anything> and * for a part; and {a,b} for one of several. The longest match counts.

    >>> scratch = {"/scratch/$USER": StorageProfile(purge_days=30)}
    >>> found = storage_of("/scratch/alice/runs", scratch, {})
    >>> found[0] if found else None
    '/scratch/$USER'
    """
    known = {**{name: StorageProfile(node_local=True) for name in _EVERYWHERE}, **storage}
    best, longest = None, -1
    for key, one in known.items():
        found = _pattern(key, environ).match(path)
        if found and found.end("head") >= longest:
            best, longest = (key, one), found.end("head")
    return best


def _pattern(key: str, environ: Mapping[str, str]) -> re.Pattern[str]:
    text = key.rstrip("/")
    if text == "~" or text.startswith("~/"):
        text = "$HOME" + text[1:]
    parts = "".join(_part(found, environ) for found in _PARTS.finditer(text))
    return re.compile(f"(?P<head>{parts})(?:/|$)")


def _part(found: re.Match[str], environ: Mapping[str, str]) -> str:
    name = found["name"]
    if name is not None:
        if name in environ:
            return re.escape(environ[name].rstrip("/"))
        return "[^/]+" if name in _OF_USER else "(?!)"  # unknown: matches nothing
    if found["one_of"] is not None:
        return f"(?:{'|'.join(re.escape(word.strip()) for word in found['one_of'].split(','))})"
    text = found.group()
    return "[^/]+" if text == "*" or text.startswith("<") else re.escape(text)
