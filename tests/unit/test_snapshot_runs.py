"""Runs of a kept program: the plan points at the copy, and every attempt starts from it."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.errors import RunError, SpecError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store
from orchestrator.submitting import launch, starting

from .builders import write_job
from .polling import until
from .repository import commit, make_repository, write
from .repository import git as run_git

processes = pytest.mark.processes

# --- the plan ---------------------------------------------------------------------------------


def prepare(job: Path, **how: Any) -> launch.Launch:
    return launch.prepare(job, runs=job.parent / "runs", site=None, overrides=[], **how)


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program without git, seen through a link; the caller is in its folder."""
    write(tmp_path, "real/conf/a.yaml")
    write(tmp_path, "real/lib/model.py")
    write(tmp_path, "real/data/corpus.bin")
    (tmp_path / "seen").symlink_to("real")
    monkeypatch.chdir(tmp_path / "seen")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "seen"


def test_the_program_comes_from_the_run_and_data_from_where_it_was(flat: Path) -> None:
    words = ["--config", "conf/a.yaml", "--c=conf/a.yaml", f"x={flat}/conf/a.yaml", "conf"]
    words += ["data/corpus.bin", "no/such.yaml", "a=b=c", "", "/", "x" * 5000 + "/."]
    plan = prepare(write_job(flat, args=words, workdir=str(flat))).plan
    code = flat / "runs" / "llama" / "code"
    conf = f"{code}/conf/a.yaml"
    expected = (f"{code}/train.py", "--config", conf, f"--c={conf}", f"x={conf}", *words[4:])
    assert plan.program == expected
    assert plan.workdir == str(flat)
    assert plan.python_path == (str(flat / "runs" / "llama" / "fsdpq"),)


def test_import_paths_into_the_program(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = flat / "runs" / "llama"
    env = {"PYTHONPATH": f"lib:/elsewhere:{flat}:data"}
    plan = prepare(write_job(flat, env=env)).plan
    assert dict(plan.env)["PYTHONPATH"] == f"{run}/code/lib:/elsewhere:{run}/code:data"
    monkeypatch.setenv("PYTHONPATH", f"{flat.resolve()}/lib:/elsewhere")
    plan = prepare(write_job(flat)).plan
    assert plan.python_path == (f"{run}/code/lib", f"{run}/fsdpq")
    write(flat, "env/lib/python3.12/site-packages/mine.pth", f"{flat.resolve()}\n")
    monkeypatch.delenv("PYTHONPATH")
    plan = prepare(write_job(flat, python=str(flat / "env/bin/python"))).plan
    assert plan.python_path == (f"{run}/code", f"{run}/fsdpq")


def test_the_working_directory_can_be_the_copy(flat: Path) -> None:
    code = {"workdir": "snapshot"}
    plan = prepare(write_job(flat, code=code, workdir=str(flat / "lib"))).plan
    assert plan.workdir == str(flat / "runs" / "llama" / "code" / "lib")
    with pytest.raises(SpecError, match=r"job\.yaml: code\.workdir: nothing of .* is kept"):
        prepare(write_job(flat, code=code, workdir=str(flat / "data")))


def test_live_code_changes_nothing(flat: Path) -> None:
    words = {"args": ["conf/a.yaml"], "env": {"PYTHONPATH": "lib"}}
    plans = [
        prepare(write_job(flat, **words), live_code=True).plan,
        prepare(write_job(flat, **words, code="live"), live_code=True).plan,
        prepare(write_job(flat, **words, code="live")).plan,
        prepare(write_job(flat, **words, code={"live": True})).plan,
    ]
    for plan in plans:
        assert plan.program == (f"{flat}/train.py", "conf/a.yaml")
        assert (dict(plan.env)["PYTHONPATH"], plan.python_path) == ("lib", ())


def test_a_run_directory_that_no_import_path_can_hold(flat: Path) -> None:
    job = write_job(flat)
    with pytest.raises(SpecError, match=r"contains ':'.*--live-code"):
        launch.prepare(job, runs=flat / "a:b", site=None, overrides=[])
    launch.prepare(job, runs=flat / "a:b", site=None, overrides=[], live_code=True)


# --- whole runs -------------------------------------------------------------------------------

# Runs the script that torchrun would have started, and the recorder.
PYTHON = f"""#!/bin/bash
[[ $2 != orchestrator.* ]] || exit 0
if [ "$1" = -m ]; then until [[ $1 == *.py ]]; do shift; done; fi
exec {sys.executable} "$@"
"""
SCRIPT = """
import sys, helper
import orchestrator
print("VERSION", {version}, helper.VALUE, orchestrator.__file__)
sys.exit(1)
"""


def submit(job: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> RunLayout:
    monkeypatch.setattr(starting, "start", lambda *_, **__: "7")
    prepared = prepare(job, **how)
    launch.submit(prepared)
    return prepared.layout


def attempt(run: RunLayout) -> str:
    """Start the run's script once more and return what this attempt printed."""
    run.output.write_text("")
    subprocess.run(["bash", run.script], check=False, timeout=60)
    printed = run.output.read_text()
    assert "VERSION" in printed, printed
    return next(line for line in printed.splitlines() if line.startswith("VERSION"))


def wait_for(path: Path) -> dict[str, Any]:
    """Return the JSON object that something in the background writes."""
    until(lambda: store.read_json(path) is not None, f"{path} does not appear", within_s=30)
    return store.read_json(path) or {}


@processes
@pytest.mark.parametrize("live", [False, True])
def test_an_edit_after_the_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    # The copy wins over the caller's own path, too.
    monkeypatch.setenv("PYTHONPATH", str(Path(orchestrator.__file__).parents[1]))
    project = make_repository(tmp_path / "pro ject's", train=SCRIPT.format(version=1))
    write(project, "helper.py", "VALUE = 10")
    commit(project)
    write(project, "helper.py", "VALUE = 11")
    python = write(tmp_path, "python", PYTHON)
    python.chmod(0o755)
    job = write_job(tmp_path, script=str(project / "train.py"), python=str(python))
    run = submit(job, monkeypatch, live_code=live)
    package = run.fsdpq if not live else Path(orchestrator.__file__).parents[1]
    assert attempt(run) == f"VERSION 1 11 {package}/orchestrator/__init__.py"
    wait_for(run.attempt(1).environment)
    write(project, "train.py", SCRIPT.format(version=2))
    write(project, "helper.py", "VALUE = 222")
    values = "2 222" if live else "1 11"
    assert attempt(run) == f"VERSION {values} {package}/orchestrator/__init__.py"
    record = store.read_json(run.code_record) or {}
    assert record["mode"] == ("live" if live else "snapshot")
    assert record["commit"] == run_git(project, "rev-parse", "HEAD")
    assert (record["branch"], record["dirty"], record["root"]) == ("main", True, str(project))
    assert "+VALUE = 11" in run.code_diff.read_text()
    assert stat.S_IMODE(run.code_diff.stat().st_mode) == 0o600
    assert record["fsdpq"]["version"] == orchestrator.__version__
    assert run.code.exists() is not live
    noted = [wait_for(run.attempt(number).environment) for number in (1, 2)]
    assert [bool(item["code"]) for item in noted] == [live, live]
    changed = [change.what for change in facts.environment_changes(run)]
    assert changed == ([("live code edited",)] if live else [])
    if not live:
        assert (record["files"], record["excluded"]) == (2, {"count": 0, "first": []})


def test_a_refused_job_leaves_no_copy(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(write_job(flat), monkeypatch)
    assert {path.name for path in run.code.rglob("*.py")} == {"train.py", "model.py"}
    assert (run.fsdpq / "orchestrator" / "runtime" / "run.py").is_file()
    record = json.loads(run.code_record.read_text())
    assert (record["kind"], record["commit"], record["dirty"]) == ("folder", None, None)
    store.discard(run)
    assert not run.root.exists()


def test_a_copy_that_fails_leaves_no_run(flat: Path) -> None:
    prepared = prepare(write_job(flat))
    (flat / "lib" / "model.py").unlink()
    with pytest.raises(RunError, match=r"model\.py: cannot be kept"):
        launch.submit(prepared)
    assert list((flat / "runs").iterdir()) == []


def test_the_trainer_is_kept_too(flat: Path) -> None:
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": ["x"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
    }
    prepared = prepare(write_job(flat, script=None, train=train))
    assert prepared.plan.python_path == (str(prepared.layout.fsdpq),)
    assert prepared.code.tree is None
    with pytest.raises(SpecError, match="belong to `script:`"):
        prepare(write_job(flat, script=None, train=train, code={"extras": ["a"]}))
