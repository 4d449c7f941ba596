"""The documents name what there is, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from orchestrator import report
from orchestrator.cli import main
from orchestrator.keys.fields import _Loader
from orchestrator.profile import load_profile, shipped
from orchestrator.spec.job import JobSpec
from orchestrator.spec.preflight import PreflightSpec
from orchestrator.spec.train import (
    CheckpointSpec,
    DataSpec,
    EvalSpec,
    LoraSpec,
    MeshSpec,
    MetricsSpec,
    ModelSpec,
    TimeoutSpec,
    TrainSpec,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
assert isinstance(main, click.Group)
COMMANDS = main.list_commands(click.Context(main))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"`fsdpq {command}" in README


def test_no_other_command_is_in_the_readme() -> None:
    named = re.findall(r"(?:`|^|\$ )fsdpq ([a-z]+)\b", README, re.MULTILINE)
    assert named
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize("site", shipped())
def test_every_shipped_site_is_in_the_readme(site: str) -> None:
    assert f"`{site}`" in README


def test_the_table_of_sites_is_made_from_the_profiles() -> None:
    page = report.sites_page([load_profile(name, base=ROOT) for name in shipped()])
    told = "replace it with what `fsdpq sites list --shipped --markdown` prints"
    assert page in README, told


def test_every_command_about_sites_is_in_the_readme() -> None:
    group = main.get_command(click.Context(main), "sites")
    assert isinstance(group, click.Group)
    commands = group.list_commands(click.Context(group))
    named = re.findall(r"`fsdpq sites ([a-z]+)\b", README)
    assert set(commands) == set(named)


@pytest.mark.parametrize("key", sorted(PreflightSpec.model_fields))
def test_every_check_of_a_node_is_in_the_readme(key: str) -> None:
    assert re.search(rf"`{key}[`:]", README)


@pytest.mark.parametrize("key", sorted(JobSpec.model_fields))
def test_every_key_of_a_job_file_is_in_the_readme(key: str) -> None:
    assert re.search(rf"\b{key}\b", README)


PARTS = (
    TrainSpec,
    ModelSpec,
    DataSpec,
    EvalSpec,
    MeshSpec,
    CheckpointSpec,
    LoraSpec,
    MetricsSpec,
    TimeoutSpec,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_key_of_train_is_in_the_table(part: type[BaseModel]) -> None:
    table = README.partition("## All keys of `train:`")[2].partition("\n## ")[0]
    assert [key for key in part.model_fields if not re.search(rf"[`{{ ]{key}[`:]", table)] == []


@pytest.mark.parametrize(
    ("module", "function"),
    [("steps", "_line"), ("steps", "_evaluate"), ("steps", "_one"),
     ("utilization", "read"), ("saver", "news"), ("pace", "summary"), ("evaluation", "measure")],
)  # fmt: skip
def test_every_key_of_the_metrics_is_in_the_table(module: str, function: str) -> None:
    tree = ast.parse((ROOT / "orchestrator" / "trainer" / f"{module}.py").read_text())
    (made,) = (n for n in ast.walk(tree) if getattr(n, "name", "") == function)
    dicts = [node for node in ast.walk(made) if isinstance(node, ast.Dict)]
    keys = [str(key.value) for one in dicts for key in one.keys if isinstance(key, ast.Constant)]
    table = README.partition("## What metrics.jsonl holds")[2].partition("\n## ")[0]
    assert keys
    assert [key for key in keys if not re.search(rf"[`{{ ]{key}[`,}}]", table)] == []


def test_the_makes_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ *)make ([a-z0-9-]+)", README + CONTRIBUTING, re.M))
    assert named <= targets


def test_the_readmes_files_are_read_as_they_stand() -> None:
    for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL):
        loader = _Loader(block)
        assert isinstance(loader.get_single_data(), dict)
