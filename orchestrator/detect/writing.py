"""A profile as a file, and how files of ours come to be: whole, and never over another's."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    """Refuse to write over a file, or where no file can be written.

    Raises:
        InputError: There is one, or it could not be written.
    """
    if not force and os.path.lexists(path):
        raise InputError(
            f"{path}: is there already, and may hold what you changed; --force writes it anew,"
            " another name or folder leaves it alone"
        )
    if why := _why_not(Path(os.path.realpath(path))):
        raise _unwritable(path, why)


def _why_not(path: Path) -> str:
    """Return why ``path`` cannot be written; empty if it can. Creates nothing."""
    if path.exists() and not path.is_file():
        return "there is something that is no file"
    folder = next(one for one in path.parents if os.path.lexists(one))
    if not folder.is_dir():
        return f"{folder} is no folder"
    # Also where the file is there: it is not written into, another takes its place.
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"you may not write into {folder}"


def _unwritable(path: Path, why: str) -> InputError:
    return InputError(f"{path}: cannot be written: {why}; name a file in a folder of yours")


def put(path: Path, text: str, *, force: bool, check: Callable[[Path], object]) -> None:
    """Write a file, once ``check`` has read it; one that is a link stays one.

    Raises:
        InputError: There is a file already, the check refuses the text, or it cannot be written.
    """
    check_free(path, force=force)
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{path.stem[:64]}-{os.urandom(6).hex()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(draft, text, like=target if force else None)
        check(draft)
        _put_in_place(draft, target, force=force)
    except InputError as problem:  # it speaks of the draft, which nobody knows
        raise type(problem)(str(problem).replace(str(draft), str(path))) from None
    except OSError as problem:
        raise _unwritable(path, problem.strerror or str(problem)) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _write(draft: Path, text: str, *, like: Path | None) -> None:
    """Write a new file with the permissions of ``like``, else those that new files have."""
    with draft.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        if like is not None and like.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(like.stat().st_mode))


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
