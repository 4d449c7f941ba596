"""`fsdpq sites lint`, and what submit and render say of its findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.profile import shipped
from orchestrator.submitting import linting

from .builders import SITE, write_job


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, a home without profiles, a machine with one interface."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FSDPQ_RUNS", raising=False)
    return tmp_path


def fsdpq(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fsdpq")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def profile(folder: Path, name: str = "own", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    data = {**SITE, "fabric": {"kind": "infiniband"}, "name": name, **changes}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def rules(result: Result) -> list[str]:
    return [one["rule"] for one in json.loads(result.stdout)["findings"]]


BAD = {"NCCL_IB_TIMEOUT": "50"}
POOR = {"NCCL_TIMEOUT": "1800"}


@pytest.mark.parametrize(
    ("env", "options", "code"),
    [({}, [], 0), (POOR, [], 0), (POOR, ["--strict"], 1), (BAD, [], 1), ({}, ["--strict"], 0)],
)
def test_exit_codes(here: Path, env: dict[str, str], options: list[str], code: int) -> None:
    path = profile(here, env=env)
    assert fsdpq("sites", "lint", path, *options).exit_code == code
    assert fsdpq("sites", "lint", path, "--json", *options).exit_code == code


def test_a_paragraph_says_where_why_what_to_do_and_who_says_so(here: Path) -> None:
    text = fsdpq("sites", "lint", profile(here, env=BAD)).stdout
    first = text.split("\n\n")[0]
    for words in (
        "own.yaml\n",
        "error env.NCCL_IB_TIMEOUT=50 [ib-timeout-range]",
        "the range is 1 to 31",
        "To do: ",
        "Source: NCCL user guide",
    ):
        assert words in first
    assert text.rstrip().endswith("1 file: 1 error, 0 warnings, 1 remark")


def test_without_names_all_profiles_are_looked_at(here: Path) -> None:
    profile(here / "config" / "fsdpq" / "sites", "mine", env=POOR)
    result = fsdpq("sites", "lint", "--json")
    data = json.loads(result.stdout)
    assert data["files"] == [str(here / "config/fsdpq/sites/mine.yaml"), *shipped()]
    assert data["counts"]["warn"] == 1
    assert set(data["findings"][0]) == {
        "rule", "level", "file", "key", "value", "why", "do", "since", "source",
    }  # fmt: skip


def test_remarks_on_shipped_profiles_are_counted_and_shown_on_request(here: Path) -> None:
    profile(here / "config" / "fsdpq" / "sites", "mine")
    short, long = fsdpq("sites", "lint").stdout, fsdpq("sites", "lint", "--all").stdout
    named = fsdpq("sites", "lint", "kempner-h100").stdout
    heads = [[line for line in text.splitlines() if "[net-not-pinned]" in line] for text in
             (short, long, named)]  # fmt: skip
    assert [len(heads[0]), len(heads[1]) > 9, len(heads[2])] == [1, True, 1]
    assert "of them on shipped profiles; --all shows them" in short
    assert "--all" not in long + named


def test_a_remark_on_what_the_site_wants_does_not_say_to_remove_it() -> None:
    around = linting.surroundings()
    for name in ("cscs-daint", "oci-bm-gpu-h100", "azure-nd-h100-v5"):
        _, found = linting.findings(name, job=None, runs=Path("runs"), around=around)
        assert found
        assert [one.line() for one in found if one.do.startswith("remove it")] == []


def test_a_broken_profile_does_not_hide_the_others(here: Path) -> None:
    own = here / "config" / "fsdpq" / "sites"
    profile(own, "a", fabric={"kind": "token ring"})
    profile(own, "b", env=POOR)
    result = fsdpq("sites", "lint", "--json")
    assert result.exit_code == 1
    assert {"unusable", "not-an-nccl-var"} <= set(rules(result))


@pytest.mark.parametrize("name", ["nowhere", "nowhere.yaml"])
def test_what_is_not_there(here: Path, name: str) -> None:
    result = fsdpq("sites", "lint", name)
    assert result.exit_code == 1
    assert "there is no" in result.stdout


def test_what_is_neither_profile_nor_job(here: Path) -> None:
    (here / "x.yaml").write_text("name: x\n")
    result = fsdpq("sites", "lint", "x.yaml")
    assert result.exit_code == 1
    assert "neither a site profile" in result.stdout


def test_a_profile_that_only_extends_is_one(here: Path) -> None:
    (here / "x.yaml").write_text("extends: kempner-h100\nname: x\nenv: {NCCL_TIMEOUT: '1'}\n")
    assert "not-an-nccl-var" in rules(fsdpq("sites", "lint", "x.yaml", "--json"))


def test_a_job_file_is_told_by_its_content(here: Path) -> None:
    site = profile(here)
    job = write_job(here, site=str(site), env=POOR, nodes=2)
    data = json.loads(fsdpq("sites", "lint", job, "--json").stdout)
    assert data["files"] == [str(job)]
    warned = [(one["file"], one["rule"]) for one in data["findings"] if one["level"] == "warn"]
    assert (str(job), "not-an-nccl-var") in warned


def test_a_job_on_other_profiles_than_its_own(here: Path) -> None:
    small = {"gpu": {"model": "H100", "per_node": 8}, "quotas": [{"nodes_per_user": 2}]}
    first, second = profile(here, "a"), profile(here, "b", **small)
    job = write_job(here, site="nowhere", nodes=3, python="/x/python")
    data = json.loads(fsdpq("sites", "lint", first, second, "--job", job, "--json").stdout)
    assert data["files"] == [str(first), str(second), str(job)]
    limits = [one for one in data["findings"] if one["rule"] == "beyond-the-limits"]
    assert [(one["file"], one["key"]) for one in limits] == [(str(job), "nodes")]
    alone = fsdpq("sites", "lint", "--job", job, "--json")
    assert (alone.exit_code, rules(alone)) == (1, ["unusable"])
    assert "--job goes with a profile" in fsdpq("sites", "lint", job, "--job", job).stdout


@pytest.mark.parametrize("version", ["new", "2", "3.1", "2.x", ""])
def test_a_version_that_is_none(here: Path, version: str) -> None:
    result = fsdpq("sites", "lint", "--nccl-version", version)
    assert result.exit_code == 2
    assert "no version of NCCL" in result.stderr


def test_the_version_of_nccl(here: Path) -> None:
    path = profile(here, fabric={"kind": "roce"}, env={"NCCL_IB_GID_INDEX": "3"})
    old = fsdpq("sites", "lint", path, "--nccl-version", "2.20.5", "--json")
    new = fsdpq("sites", "lint", path, "--nccl-version", "2.21.5+cuda12.4", "--json")
    assert ("gid-index-forced" in rules(old), "gid-index-forced" in rules(new)) == (False, True)


def test_interfaces_of_this_machine_are_asked_only_for_named_profiles(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    asked = linting.findings

    def noted(name: str, **rest: Any) -> Any:
        seen.append(rest["around"].interfaces)
        return asked(name, **rest)

    monkeypatch.setattr(linting, "findings", noted)
    fsdpq("sites", "lint", profile(here, env={"NCCL_SOCKET_IFNAME": "nowhere"}))
    fsdpq("sites", "lint")
    assert seen[0]
    assert set(seen[1:]) == {None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"script": "nosuch.py"}, "there is no file"),
        ({"container": {"image": "/x.sif"}}, "does not say how containers run there"),
        ({"time_limit": "1", "notice": {"lead_s": 120}}, "lead"),
    ],
)
def test_what_submit_refuses_is_an_error(here: Path, changes: dict[str, Any], words: str) -> None:
    site = profile(here)
    job = write_job(here, site=str(site), python="/x/python")
    runs = ("--runs", "/shared/runs")
    assert fsdpq("sites", "lint", job, *runs).exit_code == 0
    job = write_job(here, **{"site": str(site), "python": "/x/python", **changes})
    data = json.loads(fsdpq("sites", "lint", job, "--json", *runs).stdout)
    (one,) = [one for one in data["findings"] if one["level"] == "error"]
    assert (one["file"], words in one["why"]) == (str(job), True)
    assert one["why"] in fsdpq("submit", job, "--dry-run", *runs).stderr


# --- submit and render ---------------------------------------------------------------------------


def test_submit_and_render_say_what_is_wrong_and_go_on(here: Path) -> None:
    site = profile(here, env={"NCCL_IB_DISABLE": "0"})
    job = write_job(here, site=str(site), nodes=2, env={**BAD, **POOR}, python="/x/python")
    for command in (("submit", "--dry-run"), ("render",)):
        result = fsdpq(*command, job)
        assert result.exit_code == 0
        assert (
            f"warning, an error to `fsdpq sites lint`: {job}: env.NCCL_IB_TIMEOUT=50: the range is"
            in result.stderr
        )
        assert f"warning: {job}: env.NCCL_TIMEOUT=1800: no NCCL" in result.stderr
        assert "ib-disable-zero" not in result.stderr
        # Kept as it is.
        assert "export NCCL_IB_TIMEOUT=50" in result.stdout
        assert "export NCCL_TIMEOUT=1800" in result.stdout


def test_a_run_directory_on_a_nodes_own_disk(here: Path) -> None:
    job = write_job(here, site=str(profile(here)), nodes=2, python="/x/python")
    result = fsdpq("submit", job, "--dry-run", "--runs", "/dev/shm/runs")
    assert "warning, an error to `fsdpq sites lint`: " in result.stderr
    assert "[path-node-local]" in result.stderr


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"],
)
def test_a_place_that_the_job_gives_is_kept(here: Path, name: str) -> None:
    job = write_job(here, env={name: "/work/mine"}, python="/x/python")
    out = here / "out"
    assert fsdpq("render", job, "-o", out).exit_code == 0
    assert f"export {name}=/work/mine\n" in (out / "script.sbatch").read_text()
    assert f"export {name}=" not in (out / "node.sh").read_text()
    plain = here / "plain"
    assert fsdpq("render", write_job(here), "-o", plain).exit_code == 0
    assert f"export {name}=" in (plain / "node.sh").read_text()


def test_submit_says_that_no_memory_is_asked_for(here: Path) -> None:
    site = profile(here, gpu={"model": "H100", "per_node": 8})
    job = write_job(here, site=str(site), python="/x/python")
    said = fsdpq("submit", job, "--dry-run").stderr
    assert f"note: {job}: mem_gib: neither the job nor the profile says" in said
    job = write_job(here, site=str(site), python="/x/python", mem_gib=64)
    assert "mem_gib" not in fsdpq("submit", job, "--dry-run").stderr
