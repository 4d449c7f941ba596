"""`fsdpq plan`: what it prints, what it asks Slurm, and its mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.errors import ActionError
from orchestrator.slurm import client

from .builders import SITE, write_job

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
}
CLUSTER: dict[str, Any] = {
    **SITE,
    "gpu": {"model": "H100-80GB", "per_node": 8},
    "fabric": {"kind": "infiniband", "rate": "NDR400", "hcas_per_node": 8},
}
Asked = Callable[[str], str]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file on a cluster, where there is no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(CLUSTER))
    (tmp_path / "a.txt").write_text("x")
    data = {"model": {"config": CONFIG}, "data": {"text_files": ["*.txt"], "seq_len": 2048}}
    path = tmp_path / "job.yaml"
    text = {
        "name": "llama",
        "site": "./here.yaml",
        "train": {**data, "steps": 100, "global_batch": 64},
    }
    path.write_text(yaml.safe_dump(text))
    return path


@pytest.fixture
def slurm(job: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Asked], None]:
    """A Slurm that answers as it is told."""

    def answer(asked: Asked) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(client, "test_only", asked)

    return answer


def plan(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, ["plan", *map(str, args)], prog_name="fsdpq")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def as_json(*args: str | Path, code: int = 0) -> Any:
    result = plan(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_text_fits_on_a_screen(job: Path) -> None:
    result = plan(job)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 30
    for words in ("1 node x 8 x H100-80", "GiB  in all; fits", "More than one node? No", "sbatch"):
        assert words in result.stdout


def test_nothing_is_written(job: Path) -> None:
    before = sorted(path.name for path in job.parent.rglob("*"))
    plan(job)
    assert sorted(path.name for path in job.parent.rglob("*")) == before


def test_json(job: Path) -> None:
    data = as_json(job)
    assert (data["fits"], data["nodes_min"], data["gpu"]) == (True, 1, "H100-80")
    assert data["checkpoint_bytes"] == 12 * data["parameters"]
    assert data["slurm"] == {
        "accepted": None,
        "said": "there is no sbatch here; ask again on a login node",
    }


def test_what_does_not_fit_is_told_to_a_shell(job: Path) -> None:
    much = ("--set", "train.micro_batch=1024", "--set", "train.global_batch=8192")
    result = plan(job, *much)
    assert result.exit_code == 1
    assert "GiB too much" in result.stdout
    assert as_json(job, *much, code=1)["fits"] is False


def test_what_submit_would_note_is_noted(job: Path) -> None:
    changes = ("--set", "train.lora={target_modules: [query]}")
    (note,) = as_json(job, *changes)["notes"]
    assert note.startswith("train.lora.target_modules: query is no linear layer")
    assert f"Note: {note}\n" in plan(job, *changes).stdout
    assert as_json(job)["notes"] == []


def test_options_take_the_place_of_what_the_files_say(job: Path) -> None:
    one = as_json(job)
    other = as_json(job, "--nodes", "2", "--gpu", "A100-40", "--set", "train.micro_batch=4")
    assert (other["nodes"], other["gpu"]) == (2, "A100-40")
    assert other["per_gpu_bytes"]["parameters"] == one["per_gpu_bytes"]["parameters"] / 2
    assert other["per_gpu_bytes"]["activations"] > 3 * one["per_gpu_bytes"]["activations"]


def test_the_configuration_of_a_folder_of_weights(job: Path) -> None:
    model = job.parent / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    of_folder = as_json(job, "--set", "train.model={path: model}")
    assert of_folder["parameters"] == as_json(job)["parameters"]


def test_a_script_of_ones_own(job: Path) -> None:
    own = write_job(job.parent, site="local")
    data = as_json(own)
    assert (data["fits"], data["peak_bytes"], data["per_gpu_bytes"]) == (None, None, {})
    assert "does not know what it trains" in plan(own).stdout


def test_a_family_whose_shape_is_not_known_is_no_mistake(job: Path) -> None:
    mamba = ("--set", "train.model={config: mamba}")
    data = as_json(job, *mamba)
    assert (data["fits"], data["peak_bytes"]) == (None, None)
    assert data["unknown"][0].startswith("memory, speed and checkpoints of model_type mamba")
    result = plan(job, *mamba)
    assert "It may well be trained all the same" in result.stdout
    assert "Whether Slurm would take it" in result.stdout


def test_a_site_that_names_no_gpu(job: Path) -> None:
    text = plan(job, "--site", "local").stdout
    assert "the site local names no GPU; give --gpu, one of A100-40" in text
    assert "fits, " not in text


def test_slurm_would_take_it(job: Path, slurm: Callable[[Asked], None]) -> None:
    seen: list[str] = []

    def asked(script: str) -> str:
        seen.append(Path(script).read_text())
        return "Job 7 to start at 2026-12-01T08:00:00 using 8 processors on nodes n1"

    slurm(asked)
    assert "Slurm would take it: Job 7 to start at" in plan(job).stdout
    assert "#SBATCH --nodes=1" in seen[0]


@pytest.mark.parametrize(
    ("code", "stderr", "accepted"),
    [
        (1, "allocation failure: Invalid account or account/partition combination", False),
        (1, "allocation failure: Unable to contact slurm controller (connect failure)", None),
        (1, "sbatch: fatal: Could not establish a configuration source", None),
        (None, "no answer in 20 s", None),
    ],
)
def test_refused_is_not_unanswered(
    job: Path,
    slurm: Callable[[Asked], None],
    code: int | None,
    stderr: str,
    accepted: bool | None,
) -> None:
    def asked(script: str) -> str:
        raise ActionError(["sbatch", "--test-only", script], returncode=code, stderr=stderr)

    slurm(asked)
    data = as_json(job, code=1 if accepted is False else 0)
    assert data["slurm"] == {"accepted": accepted, "said": stderr}


def test_each_of_slurms_errors_has_a_line(job: Path, slurm: Callable[[Asked], None]) -> None:
    said = ("sbatch: error: resolve: Unknown host", "sbatch: fatal: no configuration " + 90 * "x")

    def asked(script: str) -> str:
        raise ActionError(["sbatch", "--test-only", script], returncode=1, stderr="\n".join(said))

    slurm(asked)
    head, first, *rest = plan(job).stdout.splitlines()[-4:]
    assert head == "Whether Slurm would take it is not known:"
    assert first == f"  {said[0]}"
    assert [line.strip() for line in rest] == [said[1][:31], said[1][32:]]
    assert as_json(job)["slurm"]["said"] == " ".join(said)


def test_without_gpus_saves_are_not_in_the_background(job: Path) -> None:
    on_cpu = plan(job, "--site", "local").stdout
    assert "for which the training waits (mode: auto is sync without GPUs)" in on_cpu
    assert "host memory" not in on_cpu
    assert "its copy takes" in plan(job, "--site", "local", "--gpu", "H200").stdout


def test_what_the_profile_forbids_is_no_mistake_of_the_forecast(job: Path) -> None:
    strict = {**CLUSTER, "account_required": True}
    (job.parent / "here.yaml").write_text(yaml.safe_dump(strict))
    data = as_json(job, code=1)
    assert data["fits"] is True
    assert data["slurm"]["accepted"] is False
    assert "account" in data["slurm"]["said"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--gpu", "abacus"], 1, "--gpu: abacus is not known; use one of A100-40"),
        (["--nodes", "3"], 1, "global_batch 64 cannot be shared out"),
        (["--nodes", "0"], 2, "--nodes"),
        (["--set", "train.model={path: nowhere}"], 1, "config.json: there is no such file"),
        (["--set", "train.model={config: {model_type: lama}}"], 1, "did you mean llama?"),
        (["--set", "train.mesh={replicate: 3, shard: 2}"], 1, "mesh: 3 replicas"),
        (["--site", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes_are_one_message(job: Path, args: list[str], code: int, words: str) -> None:
    result = plan(job, *args)
    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"a":' * 100_000,
        '{"model_type": "gemma2", "sliding_window_pattern": "x"}',
        '{"model_type": "llama", "num_hidden_layers": 1000000000}',
    ],
)
def test_a_configuration_that_does_not_read(job: Path, text: str) -> None:
    (job.parent / "config.json").write_text(text)
    result = plan(job, "--set", f"train.model={{path: {job.parent}}}")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "config.json" in result.output or "model: " in result.output


def test_a_configuration_that_is_a_pipe(job: Path) -> None:
    os.mkfifo(job.parent / "config.json")
    result = plan(job, "--set", f"train.model={{path: {job.parent}}}")
    assert result.exit_code == 1
    assert "config.json: is no ordinary file" in result.output


def test_the_question_is_put_as_sbatch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "sbatch: Job 7 to start at 2026-12-01T08:00:00\n  on nodes n1\n"
    done = subprocess.CompletedProcess([], 0, stdout="", stderr=said)
    seen: list[Any] = []

    def run(argv: Any, **_: Any) -> Any:
        seen.append(list(argv))
        return done

    monkeypatch.setattr(client, "run", run)
    assert (
        client.test_only("/x/script.sbatch") == "Job 7 to start at 2026-12-01T08:00:00 on nodes n1"
    )
    assert seen == [["sbatch", "--test-only", "/x/script.sbatch"]]
