"""The command line: every mistake is one message and an exit code, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from orchestrator import __version__
from orchestrator.cli import main
from orchestrator.cli.main import _COMMANDS, _HELP
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

from .builders import make_run, write_job

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FSDPQ_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def run(here: Path) -> RunLayout:
    """A run on this machine that has not been started."""
    return make_run(here / "runs" / "llama", scheduler="local", directives=())


def fsdpq(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fsdpq")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*args: str | Path) -> str:
    result = fsdpq(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*args: str | Path) -> Any:
    return json.loads(ok(*args))


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


# --- help -------------------------------------------------------------------------------------


def test_help_lists_every_command() -> None:
    listed = ok("--help")
    assert "Usage: fsdpq" in listed
    assert set(_COMMANDS) == set(_HELP)
    for name, text in _HELP.items():
        assert name in listed
        assert text.split()[0] in listed
    assert ok("-h") == listed


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_command_has_help(name: str) -> None:
    text = ok(name, "--help")
    assert f"Usage: fsdpq {name}" in text
    assert ok(name, "-h") == text


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_option_has_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert all(option.help for option in options)


def test_the_version() -> None:
    assert ok("--version").strip().endswith(__version__)


IMPORTS = """
import sys
from click.testing import CliRunner
from orchestrator.cli import main
for args in {commands!r}:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, (args, result.output, result.exception)
heavy = {{"torch", "transformers", "submitit", "numpy", "safetensors"}}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.processes
def test_the_command_line_imports_nothing_heavy(here: Path) -> None:
    write_job(here)
    make_run(here / "runs" / "other", scheduler="local", directives=())
    commands = [["--help"], ["--version"], *([name, "--help"] for name in _COMMANDS)]
    commands += [["render", "job.yaml"], ["submit", "job.yaml", "--dry-run"], ["status"]]
    commands += [["status", "other", "--json"], ["checkpoints", "other"], ["logs", "other"]]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(commands=commands)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.processes
def test_help_imports_neither_pydantic_nor_yaml() -> None:
    code = "import sys; from orchestrator.cli import main; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'click'" in done.stdout
    for name in ("pydantic", "yaml", "jinja2", "submitit", "torch"):
        assert f"'{name}'" not in done.stdout


# --- mistakes ---------------------------------------------------------------------------------

# (arguments, exit code, words). `job.yaml` is a good job file, `llama` a run that never started.
MISTAKES: list[tuple[list[str], int, str]] = [
    ([], 2, "Usage: fsdpq"),
    (["nope"], 2, "No such command 'nope'"),
    (["--nope"], 2, "No such option"),
    (["submit"], 2, "Missing argument 'JOB'"),
    (["submit", "job.yaml", "extra"], 2, "unexpected extra argument"),
    (["submit", "nope.yaml"], 1, "nope.yaml: there is no such file"),
    (["submit", "."], 1, "cannot be read"),
    (["submit", "x" * 300], 1, "cannot be read"),
    (["submit", "job.yaml/x"], 1, "job.yaml/x"),
    (["submit", "bad.yaml"], 1, "bad.yaml: is not valid YAML"),
    (["submit", "latin1.yaml"], 1, "latin1.yaml: is no text in UTF-8 (byte "),
    (["submit", "empty.yaml"], 1, "must hold keys and values"),
    (["submit", "job.yaml", "--set"], 2, "requires an argument"),
    (["submit", "job.yaml", "--set", "nodes"], 1, "write it as KEY=VALUE"),
    (["submit", "job.yaml", "--set", "nodez=2"], 1, "Did you mean 'nodes'?"),
    (["submit", "job.yaml", "--set", "nodes=2"], 1, "cannot be had on the site local"),
    (["submit", "job.yaml", "--set", "script=nope.py"], 1, "there is no file"),
    (["submit", "job.yaml", "--set", 'name="a\\nb"'], 1, "name: use 1 to 64"),
    (["submit", "job.yaml", "--set", "name=../x"], 1, "name: use 1 to 64"),
    (["submit", "job.yaml", "--set", "script=~no-such-user-x/t.py"], 1, "starts with '~'"),
    (["submit", "job.yaml", "--set", "env.HF_TOKEN=x"], 1, "looks like a secret"),
    (["submit", "job.yaml", "--site", "nope"], 1, "--site: there is no profile 'nope'. "),
    (["submit", "job.yaml", "--set", "site=nope"], 1, "job.yaml: site: there is no profile"),
    (["submit", "job.yaml", "--set", "hang=5"], 1, "hang: write true, false, or the limits"),
    (["submit", "job.yaml", "--site", ""], 1, "there is no profile ''"),
    (["submit", "job.yaml", "--site", "./nope.yaml"], 1, "there is no such file"),
    (["submit", "job.yaml", "--site", "bad.yaml"], 1, "bad.yaml: is not valid YAML"),
    (["submit", "job.yaml", "--site", "job.yaml"], 1, "Valid keys: account_form, account_required"),
    (["submit", "job.yaml", "--site", "~no-such-user-x/s.yaml"], 1, "no-such-user-x"),
    (
        ["submit", "job.yaml", "--site", "kempner-h100"],
        1,
        "account: the site kempner-h100 needs one",
    ),
    (["submit", "job.yaml", "--runs", "job.yaml"], 2, "is a file"),
    (["submit", "job.yaml", "--runs", "a%j"], 1, "choose another directory"),
    (["submit", "job.yaml", "--runs", "a\\b"], 1, "choose another directory"),
    (["submit", "job.yaml", "--runs", "a\nb"], 1, "choose another directory"),
    (["submit", "job.yaml"], 1, "there is a run of this name already"),
    (["submit", "batch.yaml", "--dry-run"], 1, "global_batch 7 cannot be shared out"),
    (["render", "job.yaml", "-o", "job.yaml"], 2, "is a file"),
    (["render", "job.yaml", "-o", "job.yaml/x"], 1, "cannot be written"),
    (["render", "nope.yaml"], 1, "there is no such file"),
    (["status", "nope"], 1, "there is no run 'nope' in runs. Runs there: llama"),
    (["status", ""], 1, "there is no run ''"),
    (["status", "x" * 300], 1, "File name too long"),
    (["status", "nope", "--json"], 1, "there is no run 'nope'"),
    (["status", "a", "b"], 2, "unexpected extra argument"),
    (["status", "torn"], 1, "plan.json: cannot be read"),
    (["logs"], 2, "Missing argument 'RUN'"),
    (["logs", "nope"], 1, "there is no run"),
    (["logs", "llama", "--attempt", "0"], 2, "--attempt"),
    (["logs", "llama", "--attempt", "x"], 2, "--attempt"),
    (["logs", "llama", "--attempt", "3"], 1, "there is no attempt 3"),
    (["logs", "llama", "--rank", "-1"], 2, "--rank"),
    (["logs", "llama", "--rank", "0"], 1, "no attempt has started yet"),
    (["checkpoints", "nope"], 1, "there is no run"),
    (["checkpoints", "job.yaml"], 1, "there is no run"),
    (["watch", "nope", "--once"], 1, "there is no run"),
    (["watch", "llama", "nope"], 1, "there is no run"),
    (["watch", "--every", "0"], 2, "--every"),
    (["watch", "--every", "x"], 2, "--every"),
    (["cancel"], 2, "Missing argument 'RUN'"),
    (["cancel", "nope"], 1, "there is no run"),
    (["cancel", "done"], 1, "is finished; there is nothing to cancel"),
    (["requeue", "nope"], 1, "there is no run"),
    (["requeue", "done"], 1, "is finished; there is nothing to start again"),
    (["drill", "nope"], 1, "there is no run"),
    (["drill", "llama"], 1, "reports no steps now"),
    (["drill", "done"], 1, "done: is finished; there is nothing left to stop"),
    (["drill", "llama", "--timeout", "0"], 2, "--timeout"),
]
TRAIN = {
    "model": {"config": {"model_type": "llama"}},
    "data": {"text_files": ["x"], "seq_len": 8},
    "steps": 30,
    "global_batch": 7,
}


@pytest.fixture
def world(run: RunLayout, here: Path) -> Path:
    """A folder with good and bad job files and runs."""
    write_job(here)
    (here / "batch.yaml").write_text(
        json.dumps({"site": "local", "gpus_per_node": 2, "train": TRAIN})
    )
    (here / "bad.yaml").write_text("a: [")
    (here / "latin1.yaml").write_bytes(b"name: caf\xe9")
    (here / "empty.yaml").touch()
    make_run(here / "runs" / "done", scheduler="local", directives=()).finished.write_text("{}")
    (here / "runs" / "torn").mkdir()
    (here / "runs" / "torn" / "plan.json").write_text("{")
    return here


@pytest.mark.parametrize(("args", "code", "words"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_message_and_leaves_nothing(
    world: Path, args: list[str], code: int, words: str
) -> None:
    before = everything(world)
    result = fsdpq(*args)
    assert result.exit_code == code, result.output
    assert words.replace("llama", "done, llama") in result.output or words in result.output
    assert "Traceback" not in result.output
    if args:
        assert result.stdout == ""
        errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1
    assert everything(world) == before


@pytest.mark.processes
@pytest.mark.parametrize(
    "args",
    [
        ["submit", "job.yaml", "--set", "name=caf\udce9"],
        ["submit", "job.yaml", "--runs", "caf\udce9"],
        ["status", "caf\udce9"],
    ],
)
def test_bytes_that_are_no_utf_8_on_the_command_line(world: Path, args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *args],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"Error: ")


def test_a_broken_run_does_not_hide_the_others(world: Path) -> None:
    result = fsdpq("status")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["RUN", "done", "llama"]
    assert "passed over" in result.stderr
    assert "torn/plan.json" in result.stderr


def test_the_current_directory_may_be_gone(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    result = fsdpq("status", "llama")
    os.chdir(here)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


# --- what is printed --------------------------------------------------------------------------


def test_render_prints_both_scripts_and_touches_nothing(here: Path) -> None:
    write_job(here)
    before = everything(here)
    text = ok("render", "job.yaml")
    assert f"# ===== {here}/runs/llama/script.sbatch\n#!/bin/bash\n" in text
    assert f"# ===== {here}/runs/llama/node.sh\n#!/bin/bash\n" in text
    assert everything(here) == before
    assert ok("submit", "job.yaml", "--dry-run") == text
    assert everything(here) == before


def test_render_writes_into_a_folder(here: Path) -> None:
    write_job(here)
    ok("render", "job.yaml", "-o", "out/deep")
    names = {"job.yaml", "spec.json", "plan.json", "preflight.json", "script.sbatch", "node.sh"}
    names.add("recorder.py")
    assert {path.name for path in (here / "out" / "deep").iterdir()} == names
    assert (here / "out/deep/job.yaml").read_bytes() == (here / "job.yaml").read_bytes()
    assert ok("render", "job.yaml").endswith((here / "out/deep/node.sh").read_text() + "\n")


def test_sites_and_overrides(here: Path) -> None:
    write_job(here)
    text = ok(
        *("render", "job.yaml", "--site", "kempner-h100", "--set", "account=lab"),
        *("--set", "nodes=2", "--set", "notice.lead_s=60", "--runs", "elsewhere"),
    )
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --signal=USR2@60\n" in text
    assert f"run_dir={here}/elsewhere/llama\n" in text


def test_a_site_on_the_command_line_is_relative_to_the_current_directory(here: Path) -> None:
    (here / "jobs").mkdir()
    write_job(here / "jobs", site="../sites/own.yaml")
    (here / "sites").mkdir()
    (here / "sites" / "own.yaml").write_text("extends: local\nenv: {FROM: file}\n")
    (here / "\U0001f600.yaml").write_text("extends: local\nenv: {FROM: line}\n")
    assert "export FROM=file\n" in ok("render", "jobs/job.yaml")
    assert "export FROM=line\n" in ok("render", "jobs/job.yaml", "--site", "./\U0001f600.yaml")


def test_runs_come_from_the_environment_too(run: RunLayout, monkeypatch: Any) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("FSDPQ_RUNS", str(run.root.parent))
    assert ok("status").splitlines()[1].startswith("llama")
    assert as_json("status", run.root, "--runs", "/nowhere", "--json")["run"] == "llama"


def test_status_without_runs(here: Path) -> None:
    assert ok("status").strip() == "no runs in runs"
    assert as_json("status", "--json") == []


def test_status_as_json(run: RunLayout) -> None:
    one = as_json("status", "llama", "--json")
    assert (one["run"], one["job_id"], one["attempts"]) == ("llama", None, [])
    # The ledger is of a single run: it reads all of its metrics.
    assert one["goodput"]["goodput"] is None
    assert as_json("status", "--json") == [{**one, "goodput": None}]


def test_status_of_a_finished_run(run: RunLayout) -> None:
    run.finished.write_text('{"step": 100}')
    assert as_json("status", "llama", "--json")["state"] == "finished"
    assert "finished" in ok("status", "llama")


def test_checkpoints(run: RunLayout) -> None:
    assert as_json("checkpoints", "llama", "--json") == {"resume": None, "checkpoints": []}
    assert "no checkpoints in" in ok("checkpoints", "llama")
    (run.checkpoints / "step-40").mkdir()
    found = as_json("checkpoints", "llama", "--json")
    assert found["resume"] is None
    assert found["checkpoints"] == [
        {
            "step": 40,
            "path": str(run.checkpoints / "step-40"),
            "complete": False,
            "reason": "no manifest and no .metadata: the save was cut off early",
        }
    ]
    assert as_json("checkpoints", run.checkpoints, "--json") == found
    Path("llama").mkdir()  # such as `fsdpq init llama` makes
    assert as_json("checkpoints", "llama", "--json") == found
    text = ok("checkpoints", "llama", "--verify")
    assert "cut off early" in text
    assert "a resume would use step 0" in text


def test_logs(run: RunLayout) -> None:
    run.output.write_bytes(b"hello\ncaf\xe9\n")
    assert ok("logs", "llama") == "hello\ncaf\ufffd\n"


def test_following_the_logs_of_a_run_that_is_over_ends(run: RunLayout) -> None:
    run.output.write_text("hello\n")
    run.finished.write_text("{}")
    assert ok("logs", "llama", "-f") == "hello\n"


def test_cancelling_a_run_that_was_never_started(run: RunLayout) -> None:
    assert "cancelled" in ok("cancel", "llama")
    assert run.cancelled.exists()
    kinds = [event["kind"] for event in store.events(run)]
    assert kinds == ["cancel"]
    mark = run.cancelled.read_bytes()
    assert "cancelled" in ok("cancel", "llama")
    assert run.cancelled.read_bytes() == mark
    assert as_json("status", "llama", "--json")["state"] == "cancelled"


def test_watch_once_over_runs_that_are_over(run: RunLayout) -> None:
    run.finished.write_text("{}")
    (item,) = as_json("watch", "--once", "--json")
    assert (item["run"], item["state"], item["note"]) == ("llama", "finished", "")
    result = fsdpq("watch", "llama", "--once")
    assert result.exit_code == 0
    assert "llama  finished" in result.stderr
    assert fsdpq("watch", "llama").exit_code == 0


def test_watch_without_runs(here: Path) -> None:
    assert as_json("watch", "--once", "--json") == []
    for words in (["watch"], ["watch", "--once"]):
        result = fsdpq(*words)
        assert result.exit_code == 0
        assert "no runs in" in result.stderr
