"""What needs no file of its own: examples in docstrings, data folders, the tree of errors."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import orchestrator
from orchestrator import errors, resources
from orchestrator.rundir.layout import RunLayout

# They import torch, or are commands of their own.
LEFT_OUT = ("orchestrator.trainer", "orchestrator.__main__", "orchestrator.runtime.collective")
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(orchestrator.__path__, "orchestrator.")
    if not info.name.startswith(LEFT_OUT)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("kind", ["templates", "site"])
def test_a_broken_installation_says_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "orchestrator"
    package.mkdir(parents=True)
    (tmp_path / "site-packages" / kind).mkdir()  # of some other project
    monkeypatch.setattr(resources, "files", lambda name: package)
    with pytest.raises(FileNotFoundError, match=f"without its {kind}/ files"):
        resources.root(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["templates", "site"])
def test_an_installed_folder_comes_first(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "orchestrator"
    (package / kind).mkdir(parents=True)
    (tmp_path / kind).mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(resources, "files", lambda name: package)
    assert resources.root(kind) == package / kind  # type: ignore[arg-type]


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    above: dict[int, str] = {}
    for indent, name in re.findall(r"^( *)([A-Z]\w+Error)\b", errors.__doc__, re.MULTILINE):
        above[len(indent)] = name
        drawn[name] = above.get(len(indent) - 2, "Exception")
    classes = {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert drawn == classes


def test_a_failed_command_is_told_with_all_there_is() -> None:
    error = errors.QueryError(["squeue", "-x"], returncode=None, stderr=" \n")
    assert str(error) == "squeue -x gave no answer in time: (no message)"


def test_every_file_of_a_run_has_its_place_below_it() -> None:
    layout = RunLayout(Path("/runs/llama"))
    names = [name for name, value in vars(RunLayout).items() if isinstance(value, property)]
    paths = [getattr(layout, name) for name in names if name != "name"]
    assert len(set(paths)) == len(paths)
    assert all(path.parent == layout.root for path in paths)
    assert layout.attempt(12).root == layout.attempts / "12"
    assert layout.name == "llama"
