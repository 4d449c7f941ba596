from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.rundir.environment import Change, Environment, changes, parse, parse_packages
from orchestrator.runstore import facts

from .builders import make_run

RECORD: dict[str, Any] = {
    "host": "n1",
    "python": {"version": "3.11.4", "prefix": "/env"},
    "packages": "aa",
    "modules": ["gcc/12", "cuda/12.4"],
    "container": None,
    "driver": "550.1",
    "code": None,
}
PACKAGES = {"torch": "2.13.0", "numpy": "2.1", "zlib": "1"}


def made(attempt: int = 1, listed: dict[str, str] | None = PACKAGES, **new: Any) -> Environment:
    return parse(attempt, {**RECORD, **new}, listed)


def said(after: Environment, before: Environment | None = None) -> str:
    found = changes([before or made(), after])
    return ", ".join(found[0].what) if found else ""


@pytest.mark.parametrize(
    ("new", "text"),
    [
        ({}, ""),
        ({"host": "n2", "kernel": "6"}, ""),
        ({"python": {"version": "3.12.1", "prefix": "/env"}}, "Python 3.11.4 -> 3.12.1"),
        ({"python": {"version": "3.11.4", "prefix": "/b"}}, "Python's folder /env -> /b"),
        ({"container": "/images/a.sif"}, "container image none -> /images/a.sif"),
        ({"driver": "570.2"}, "NVIDIA driver 550.1 -> 570.2"),
        ({"driver": None}, ""),
        ({"modules": ["gcc/12", "cuda/12.8"]}, "module cuda/12.4 -> cuda/12.8"),
        ({"modules": ["gcc/12"]}, "module cuda/12.4 -> none"),
        ({"modules": ["cuda/12.4", "gcc/12"]}, ""),
        ({"modules": "rubbish", "python": 3, "container": ["x"], "code": "x"}, None),
    ],
)
def test_what_is_a_change(new: dict[str, Any], text: str | None) -> None:
    found = said(made(2, **new))
    assert text is None or found == text


def test_packages_by_what_matters() -> None:
    new = {"torch": "2.14.1", "numpy": "2.1", "new": "3"}
    assert (
        said(made(2, new, packages="bb")) == "torch 2.13.0 -> 2.14.1, new none -> 3, zlib 1 -> none"
    )
    many = {f"p{index}": "1" for index in range(20)}
    text = said(made(2, {**many, "torch": "3"}, packages="bb"))
    assert text.startswith("torch 2.13.0 -> 3, ")
    assert text.endswith(", 17 more packages")
    assert said(made(2, None, packages="bb")) == "installed packages"
    assert said(made(2, {}, packages="aa")) == ""
    assert said(made(2, {}, packages=None)) == ""


@pytest.mark.parametrize(
    ("new", "text"),
    [
        ({"commit": "b" * 40}, f"live code {'a' * 12} -> {'b' * 12}"),
        ({"difference": "e"}, "live code edited"),
        ({"script": "e"}, "live code edited"),
        ({"commit": None, "difference": None}, ""),
        ({}, ""),
    ],
)
def test_live_code(new: dict[str, Any], text: str) -> None:
    old = {"root": "/p", "commit": "a" * 40, "difference": "d", "script": "s"}
    assert said(made(2, code={**old, **new}), made(code=old)) == text
    assert said(made(2, code={**old, **new}), made()) == ""


def test_a_change_as_text_and_as_json() -> None:
    change = Change(before=2, after=4, what=("torch 1 -> 2", "x"))
    assert str(change) == "environment changed between attempts 2 and 4: torch 1 -> 2, x"
    assert change.to_json() == {"from": 2, "to": 4, "changes": ["torch 1 -> 2", "x"]}


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert "\x1b" not in said(made(2, container="\x1b[31m"))
    assert parse_packages("a==1\nrubbish\n\nb==2==3") == {"a": "1", "b": "2==3"}


def test_from_the_run_directory(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama")
    run.environments.mkdir()
    (run.environments / "aa.txt").write_text("torch==1\n")
    (run.environments / "bb.txt").write_text("torch==2\n")
    records: list[Any] = [RECORD, None, "torn", {**RECORD, "packages": "bb"}, {"packages": "../x"}]
    for number, record in enumerate(records, start=1):
        run.attempt(number).root.mkdir()
        if record is not None:
            run.attempt(number).environment.write_text(
                json.dumps(record)[:-1] + "}" * (record != "torn")
            )
    (change,) = facts.environment_changes(run)[:1]
    assert (change.before, change.after, change.what) == (1, 4, ("torch 1 -> 2",))
    assert facts.environment_changes(make_run(tmp_path / "none")) == ()
