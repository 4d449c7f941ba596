"""The examples of jobs/: each job file is one, and its script is there and compiles."""

import ast
from pathlib import Path

import pytest

from orchestrator.spec.job import load_job

JOBS = Path(__file__).parents[2] / "jobs"
SCRIPTS = ("toy_fsdp2", "hf_trainer", "lightning_fit", "torchtitan_run")


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_job_file_is_read_and_names_its_script(path: Path) -> None:
    job = load_job(path)
    assert job.name == path.stem
    assert job.train is not None or Path(str(job.script)).is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_attaches_before_it_imports_torch(name: str) -> None:
    """A notice that comes during the imports would kill a process that has not attached yet."""
    lines = (JOBS / f"{name}.py").read_text().splitlines()
    attached = next(i for i, line in enumerate(lines) if line.startswith("run = runtime.attach()"))
    heavy = ("torch", "transformers", "lightning", "torchtitan")
    imports = [
        i
        for i, line in enumerate(lines)
        if line.startswith(("import ", "from ")) and line.split()[1].split(".")[0] in heavy
    ]
    assert imports
    assert min(imports) > attached


def test_the_plain_script_needs_about_ten_lines() -> None:
    text = (JOBS / "toy_fsdp2.py").read_text()
    ast.parse(text)
    added = [line for line in text.splitlines() if "# <-" in line and "`# <-`" not in line]
    assert 8 <= len(added) <= 13
