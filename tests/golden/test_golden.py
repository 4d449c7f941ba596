"""Whole scripts, compared word for word and read by bash and shellcheck.

After a change of a template that is meant: `python -m tests.golden.regenerate`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.profile import shipped

from .cases import CASES, HERE, WATCH, all_rendered, rendered, rendered_watch

KEPT = sorted([*HERE.glob("*.sbatch"), *HERE.glob("*.node.sh")])


@pytest.mark.parametrize("name", [*CASES, WATCH])
def test_scripts_are_what_they_were(name: str) -> None:
    for file, text in (rendered_watch() if name == WATCH else rendered(name)).items():
        kept = (HERE / file).read_bytes().decode()
        assert text == kept, f"{file} differs; if that is meant: python -m tests.golden.regenerate"


def test_every_shipped_site_has_a_case() -> None:
    assert {case.site for case in CASES.values()} == set(shipped())


def test_no_golden_script_is_left_over() -> None:
    assert {path.name for path in KEPT} == set(all_rendered())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_bash_reads_them(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def shellcheck() -> str:
    """The path of shellcheck; without it the test is skipped, or fails where all must run."""
    found = shutil.which("shellcheck")
    if found is None and os.environ.get("FSDPQ_REQUIRE_SLURM"):
        pytest.fail("shellcheck is not installed")
    if found is None:
        pytest.skip("shellcheck is not installed")
    return found


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(path: Path, shellcheck: str) -> None:
    # SC2016: a value in single quotes is meant to be left alone, whatever it holds.
    argv = [shellcheck, "--shell=bash", "--format=gcc", "--exclude=SC2016", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
