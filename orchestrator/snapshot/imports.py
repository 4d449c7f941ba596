"""Where a job's Python would find the program's modules, other than beside the script."""

import ast
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LARGE = 1 << 20


def installed_from(python: str) -> list[str]:
    """Return the folders that editable installs of the interpreter ``python`` import from.

    They stand in the .pth files of its site-packages, or in the table of setuptools' finder.
    Nothing is run; an interpreter that only the nodes have tells nothing.
    """
    program = python if "/" in python else shutil.which(python)
    if program is None:
        return []
    prefix = Path(program).parent.parent
    found: list[str] = []
    for packages in sorted(prefix.glob("lib*/python3*/site-packages")):
        with suppress(OSError):
            for pattern in ("*.pth", "__editable__*finder.py"):
                for path in sorted(packages.glob(pattern)):
                    found += _folders(path)
    return list(dict.fromkeys(found))


def _folders(path: Path) -> Iterator[str]:
    with suppress(OSError):
        if path.stat().st_size > _LARGE:
            return
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("/"):
                yield line.rstrip()
            elif line.startswith("MAPPING"):
                yield from _of_finder(line)


def _of_finder(line: str) -> Iterator[str]:
    """Yield the folders in setuptools' `MAPPING: dict[str, str] = {'name': '/path/of/name'}`."""
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        table = ast.literal_eval(line.partition("=")[2].strip())
        for name, path in table.items() if isinstance(table, dict) else ():
            if isinstance(path, str) and os.path.basename(path) == str(name):  # noqa: PTH119
                yield os.path.dirname(path)  # noqa: PTH120
