"""Mistakes in a file, in words for who wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.keys.fields import read_yaml, validate
from orchestrator.spec.job import JobSpec

START = "name: x\nsite: local\nscript: a\n"


def message(folder: Path, text: str) -> str:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        validate(JobSpec, read_yaml(path, error=SpecError), where=path, error=SpecError)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("restart:\n\tdelay_s: 3\n", "line 5, column 1: a tab; YAML is indented with spaces only"),
        (
            "account: 'x\n",
            "line 5, column 1: found unexpected end of stream (while scanning a quoted",
        ),
        ("args: [1\n", "(while parsing a flow sequence that begins in line 4)"),
        ("nodes: 2\nnodes: 3\n", "line 5, column 1: the key 'nodes' stands here twice"),
    ],
)
def test_what_is_no_yaml_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    told = message(tmp_path, START + text)
    assert words in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: two", "nodes: must be a whole number (given: 'two')"),
        ("nodes: 0", "nodes: must be 1 or more (given: 0)"),
        ("env: [1]", "env: must hold keys and values, indented below it (given: [1])"),
        ("restart: 5", "restart: must hold keys and values, indented below it (given: 5)"),
        ("args: x", "args: must be a list, such as [a, b] (given: 'x')"),
        ("modules: {a: 1}", "modules: must be a list, such as [a, b]"),
        ("env: {A: [1]}", "env.A: must be text (given: [1])"),
        ("args: [1]", "args.0: must be text; put it in quotes (given: 1)"),
        ("notice: {signal: HUP}", "notice.signal: must be 'USR1' or 'USR2' (given: 'HUP')"),
    ],
)
def test_values_of_a_wrong_type(tmp_path: Path, text: str, words: str) -> None:
    told = message(tmp_path, START + text + "\n")
    assert words in told
    assert "Input should" not in told
