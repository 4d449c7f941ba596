from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import snapshot
from orchestrator.errors import RunError, SpecError, SubmitError, SubmitUnknownError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.runstore import store
from orchestrator.submitting import launch, remarks, starting

from .builders import SITE, write_job


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(here: Path, **job: Any) -> launch.Launch:
    return launch.prepare(write_job(here, **job), runs=Path("runs"), site=None, overrides=[])


def test_what_is_prepared(here: Path) -> None:
    prepared = prepare(here, args=["--x", "1"])
    assert prepared.layout.root == here / "runs" / "llama"
    assert prepared.plan.python == sys.executable
    assert prepared.plan.workdir == str(here)
    scripts = {"script.sbatch", "node.sh", "recorder.py"}
    assert set(prepared.files) == {"job.yaml", "spec.json", "plan.json", "preflight.json"} | scripts
    assert LaunchPlan.from_json(json.loads(prepared.files["plan.json"])) == prepared.plan
    assert json.loads(prepared.files["spec.json"])["args"] == ["--x", "1"]
    assert not (here / "runs").exists()


def test_a_job_without_checks_has_no_file_of_them(here: Path) -> None:
    checked = json.loads(
        prepare(here, preflight={"clocks": False}, gpus_per_node=4).files["preflight.json"]
    )
    assert checked["workers"] == 4
    assert "clocks" not in checked["checks"]
    assert "preflight.json" not in prepare(here, preflight=False).files


def test_the_reference_trainer_gets_its_part_of_the_job(here: Path) -> None:
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": ["x"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
    }
    files = prepare(here, script=None, train=train).files
    data = json.loads(files["train.json"])
    assert data["steps"] == 30
    assert data["data"]["text_files"] == [str(here / "x")]
    train["checkpoint"] = {"local_copy": str(here / "runs")}
    run = prepare(here, script=None, train=train).layout.root
    train["checkpoint"] = {"local_copy": str(run / "copies")}
    with pytest.raises(SpecError, match=r"local_copy: .* lies in the run directory"):
        prepare(here, script=None, train=train)


def test_the_shard_groups_of_hsdp_are_settled_from_the_gpus_of_a_node(here: Path) -> None:
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": [str(here / "job.yaml")], "seq_len": 8},
        "steps": 30,
        "global_batch": 12,
        "mesh": "hsdp",
    }
    files = prepare(here, script=None, gpus_per_node=4, train=train).files
    mesh = {"replicate": "auto", "shard": 4}
    assert json.loads(files["train.json"])["mesh"] == mesh
    assert json.loads(files["spec.json"])["train"]["mesh"] == mesh


def test_a_mesh_that_crosses_nodes_is_a_note(here: Path) -> None:
    (here / "site.yaml").write_text(yaml.safe_dump(SITE))
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": [str(here / "job.yaml")], "seq_len": 8},
        "steps": 30,
        "global_batch": 24,
        "mesh": {"replicate": 2, "shard": 12},
    }
    job = {"site": "./site.yaml", "nodes": 3, "gpus_per_node": 8, "script": None, "train": train}
    assert any("train.mesh: shard groups of 12" in note for note in prepare(here, **job).notes)


def test_no_secret_of_the_environment_is_written_down(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2-hunter2")
    assert "hunter2" not in json.dumps(prepare(here).files)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were submitted."""
    done: list[str] = []

    def submit(layout: Any, plan: LaunchPlan, **_: Any) -> str:
        assert store.load_plan(layout) == plan
        assert layout.script.is_file()
        done.append(layout.name)
        return "7"

    monkeypatch.setattr(starting, "start", submit)
    return done


def test_submitting_makes_the_run_first(here: Path, submitted: list[str]) -> None:
    prepared = prepare(here)
    assert launch.submit(prepared) == "7"
    assert submitted == ["llama"]
    found = {
        path.name: path.read_text() for path in prepared.layout.root.iterdir() if path.is_file()
    }
    assert found.items() >= prepared.files.items()
    created, under_way = store.events(prepared.layout)
    assert (created["kind"], created["job_name"]) == ("created", prepared.plan.job_name)
    # So a watcher that finds the run in the middle of this waits for the answer.
    assert under_way["kind"] == "submitting"


def test_the_submission_is_timed_from_the_end_of_the_copy(
    here: Path, submitted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may take longer than a watcher waits for the answer of sbatch."""
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    monkeypatch.setattr(snapshot, "keep", lambda *_: clock.append(clock.pop() + 600.0))
    prepared = prepare(here)
    launch.submit(prepared)
    assert [event["at"] for event in store.events(prepared.layout)] == [1600.0, 1600.0]


def test_a_name_is_used_once(here: Path, submitted: list[str]) -> None:
    launch.submit(prepare(here))
    with pytest.raises(RunError, match="there is a run of this name already"):
        launch.submit(prepare(here))
    assert submitted == ["llama"]


def test_a_refused_job_leaves_no_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise SubmitError(["sbatch"], returncode=1, stderr="Invalid account")

    monkeypatch.setattr(starting, "start", refuse)
    with pytest.raises(SubmitError, match="Invalid account"):
        launch.submit(prepare(here))
    assert list((here / "runs").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [SubmitUnknownError(["sbatch"], returncode=124, stderr=""), KeyboardInterrupt(), OSError("x")],
)
def test_a_job_that_may_exist_keeps_its_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any) -> str:
        raise error

    monkeypatch.setattr(starting, "start", fail)
    prepared = prepare(here)
    with pytest.raises(type(error)):
        launch.submit(prepared)
    assert prepared.layout.plan.is_file()


def test_what_may_be_a_mistake_is_noted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remarks, "find_spec", lambda name: None)
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": ["nowhere/*.txt"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
    }
    notes = "\n".join(prepare(here, script=None, train=train).notes)
    assert "has no torch" in notes
    assert "`python:`" in notes
    assert f"nothing matches {here}/nowhere/*.txt" in notes
    assert "has no torch" not in "\n".join(prepare(here, python="/env/bin/python").notes)


def test_a_mistake_that_the_plan_finds_names_the_file(here: Path) -> None:
    with pytest.raises(SpecError, match=r"^.*job\.yaml: gpus_per_node: 9"):
        launch.prepare(
            write_job(here, gpus_per_node=9, account="a"),
            runs=Path("runs"),
            site="kempner-h100",
            overrides=[],
        )


def test_dots_in_the_path_of_the_runs_lead_to_the_same_run(here: Path) -> None:
    (here / "sub").mkdir()
    job = write_job(here)
    one = launch.prepare(job, runs=Path("runs"), site=None, overrides=[])
    other = launch.prepare(job, runs=Path("sub/../runs"), site=None, overrides=[])
    assert one.layout == other.layout
