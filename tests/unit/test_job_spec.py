from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import SpecError
from orchestrator.spec.job import JobSpec, check_script, load_job

from .builders import spec

TRAIN: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}},
    "data": {"text_files": ["*.txt"], "seq_len": 32},
    "steps": 10,
    "global_batch": 8,
}


def write(folder: Path, text: str | None = None, **data: Any) -> Path:
    path = folder / "llama.yaml"
    data = {"site": "local", "script": "train.py", **data}
    path.write_text(text if text is not None else yaml.safe_dump(data), encoding="utf-8")
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_job(path, overrides=overrides)
    return str(caught.value)


def test_the_smallest_job(tmp_path: Path) -> None:
    job = load_job(write(tmp_path))
    assert (job.name, job.nodes, job.script) == ("llama", 1, str(tmp_path / "train.py"))
    assert (job.notice.signal, job.notice.lead_s) == ("USR2", 120)
    assert (job.restart.max_no_progress, job.restart.delay_s) == (3, 15)


def test_it_survives_a_round_trip(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, nodes=2, time_limit="1-0", env={"A": "b"}, args=["--x", "1"]))
    assert JobSpec.model_validate({**job.model_dump(), "time_limit": "1440"}) == job


def test_the_name_is_the_files_unless_it_is_given(tmp_path: Path) -> None:
    assert load_job(write(tmp_path, name="other")).name == "other"
    (tmp_path / "my job.yaml").write_text("site: local\nscript: x\n")
    assert "name: use 1 to 64" in complaint(tmp_path / "my job.yaml")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"script": None}, "give either `train:`"),
        ({"train": TRAIN}, "and not both"),
        ({"script": None, "train": TRAIN, "args": ["x"]}, "`args:` belongs to `script:`"),
        ({"time_limit": "2:00"}, "notice.lead_s is 120 and the time limit 120 s"),
        ({"time_limit": "10", "notice": {"lead_s": 600}}, "must come before the end"),
        ({"notice": {"lead_s": 0}}, "notice.lead_s"),
        ({"notice": {"lead_s": 70000}}, "notice.lead_s"),
        ({"notice": {"signal": "TERM"}}, "notice.signal"),
        ({"notice": {"signal": "SIGUSR1"}}, "notice.signal"),
        ({"notice": {"lead": 5}}, "Valid keys: lead_s, signal"),
        ({"restart": {"max_no_progress": 0}}, "restart.max_no_progress"),
        ({"restart": {"delay_s": 100, "max_delay_s": 10}}, "raise max_delay_s"),
        ({"restart": {"on_gpu_memory": "smaller_micro_batch"}}, "leave it out"),
        ({"restart": {"delay_s": -1}}, "restart.delay_s"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": "2"}, "nodes"),
        ({"nodes": 2.0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"mem_gib": "64G"}, "mem_gib"),
        ({"mem": 64}, "Did you mean 'mem_gib'?"),
        ({"partition": "$P"}, "partition"),
        ({"account": 123}, "account: must be text; put it in quotes (given: 123)"),
        ({"exclude": "n1"}, "exclude"),
        ({"args": ["--steps", 100]}, "args.1: must be text; put it in quotes (given: 100)"),
        ({"args": "--steps 100"}, "args"),
        ({"modules": ["cuda\nrm"]}, "modules.0"),
        ({"python": "py\tthon"}, "python"),
        ({"site": None}, "site"),
        ({"unknown": 1}, "Valid keys: account, args,"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: dict[str, Any], words: str) -> None:
    message = complaint(write(tmp_path, **data))
    assert words in message
    assert all(line.startswith(f"{tmp_path}/llama.yaml: ") for line in message.splitlines())


def test_a_missing_site_is_named(tmp_path: Path) -> None:
    assert "site: is required" in complaint(write(tmp_path, "script: x\n"))


def test_an_account_with_leading_zeros_and_a_partition_called_on(tmp_path: Path) -> None:
    text = "site: local\nscript: x\naccount: 0123\npartition: on\ntime_limit: 12:00:00\n"
    job = load_job(write(tmp_path, text))
    assert (job.account, job.partition, job.time_limit) == ("0123", "on", 43200)


# --- --set ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("nodes=4", "nodes", 4),
        (" nodes =4", "nodes", 4),
        ("notice.lead_s=30", "notice.lead_s", 30),
        ("notice={lead_s: 7}", "notice.lead_s", 7),
        ("account=0123", "account", "0123"),
        ("account='7'", "account", "7"),
        ("time_limit=12:00:00", "time_limit", 43200),
        ("time_limit=90", "time_limit", 5400),
        ("comment=a=b", "comment", "a=b"),
        ("env.A=x y", "env", {"A": "x y"}),
        ("args=[a, 'b=c']", "args", ("a", "b=c")),
        ("partition=", "partition", None),
        ("partition=null", "partition", None),
        ("name=gr-1", "name", "gr-1"),
    ],
)
def test_overrides(tmp_path: Path, override: str, path: str, value: object) -> None:
    found: Any = load_job(write(tmp_path, partition="p"), overrides=[override])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_the_last_override_wins(tmp_path: Path) -> None:
    job = load_job(write(tmp_path), overrides=["nodes=2", "nodes=3", "notice.lead_s=9"])
    assert (job.nodes, job.notice.lead_s, job.notice.signal) == (3, 9, "USR2")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("nodes", "write it as KEY=VALUE"),
        ("=4", "write it as KEY=VALUE"),
        (".=4", "write it as KEY=VALUE"),
        ("", "write it as KEY=VALUE"),
        ("nodes.x=4", "'nodes' holds a value, not keys"),
        ("args.0=4", "'args' holds a value, not keys"),
        ("nodes=[", "is not valid YAML"),
        ("nodes={a: 1, a: 2}", "is not valid YAML"),
        ("nodes=two", "nodes"),
        ("node=4", "Did you mean 'nodes'?"),
        ("notice..lead_s=4", "is no key here"),
        ("name=a\x00b", "--set"),
        ('comment="a\\nb"', "comment: contains the control character"),
        ("site=", "site"),
        ("train.steps=4", "train.model: is required"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, words: str) -> None:
    assert words in complaint(write(tmp_path, args=["a"], nodes=1), override)


# --- paths ------------------------------------------------------------------------------------


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    data = {
        **TRAIN,
        "model": {"path": "weights"},
        "data": {"text_files": ["a/*.txt"], "seq_len": 8},
    }
    job = load_job(write(tmp_path, script=None, train=data, workdir="w", python="./v/bin/python"))
    assert job.workdir == str(tmp_path / "w")
    assert job.python == str(tmp_path / "v/bin/python")
    assert job.train is not None
    assert job.train.model.path == str(tmp_path / "weights")
    assert job.train.data.text_files == (str(tmp_path / "a/*.txt"),)


def test_a_relative_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("llama.yaml")).script == str(tmp_path / "train.py")


def test_home_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    job = load_job(write(tmp_path, script="~/t.py", workdir="/w", python="~/v/bin/python"))
    assert (job.script, job.workdir) == ("/home/alice/t.py", "/w")
    assert job.python == "/home/alice/v/bin/python"


def test_a_bare_python_is_looked_up_on_the_nodes(tmp_path: Path) -> None:
    assert load_job(write(tmp_path, python="python3")).python == "python3"


@pytest.mark.parametrize("key", ["script", "workdir", "python"])
def test_a_home_that_is_not_there(tmp_path: Path, key: str) -> None:
    assert "starts with '~'" in complaint(write(tmp_path, **{key: "~no-such-user-x/y"}))


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no file /nowhere/t\.py"):
        check_script(spec(script="/nowhere/t.py"))
    with pytest.raises(SpecError, match="there is no file"):
        check_script(spec(script=str(tmp_path)))
