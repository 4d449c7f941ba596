"""A profile as a file, and how files of ours come to be: whole, and never over another's."""

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import InputError

_HEAD = """\
# Written by `fsdpq sites detect`; yours to change. `evidence` says how each value was found: a key
# stands for itself and for all below it. `fsdpq sites detect --force` writes the file anew.
"""
# What YAML 1.2 reads as a number and PyYAML, which follows 1.1, does not quote.
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")


class _Dumper(yaml.SafeDumper):
    """Quotes what our loader would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, data: str) -> yaml.ScalarNode:
    style = '"' if _NUMBER.fullmatch(data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(data: Mapping[str, Any]) -> str:
    """Return the file of a profile. Pure."""
    long = ("notes", "evidence")
    plain = {key: value for key, value in data.items() if key not in long}
    rest = {key: data[key] for key in long if key in data}
    return _HEAD + _dump(plain, flow=None) + (_dump(rest, flow=False) if rest else "")


def _dump(data: Mapping[str, Any], *, flow: bool | None) -> str:
    return str(
        yaml.dump(
            dict(data),
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=flow,  # None: what holds no more lists or mappings is one line
            allow_unicode=True,
            width=98,
        )
    )


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to write over a file.

    Raises:
        InputError: There is one.
    """
    if not force and os.path.lexists(path):
        raise InputError(
            f"{path}: is there already, and may hold what you changed; --force writes it anew,"
            " another name or folder leaves it alone"
        )


def put(path: Path, text: str, *, force: bool, check: Callable[[Path], object]) -> None:
    """Write a file, once ``check`` has read it.

    Raises:
        InputError: There is a file already, or the check refuses the text.
        OSError: It cannot be written.
    """
    check_free(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        check(Path(draft))
        _put_in_place(Path(draft), path, force=force)
    finally:
        Path(draft).unlink(missing_ok=True)


def _put_in_place(draft: Path, path: Path, *, force: bool) -> None:
    if force:
        draft.replace(path)
        return
    try:
        path.hardlink_to(draft)  # which fails where somebody was faster
    except FileExistsError:
        check_free(path, force=False)
        raise
    except OSError:  # a file system without hard links
        check_free(path, force=False)
        draft.replace(path)
