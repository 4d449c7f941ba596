"""`fsdpq sites list` and `fsdpq sites show`, and what they print."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator import report
from orchestrator.cli import main
from orchestrator.profile import load_profile, shipped
from orchestrator.report.columns import fitted

from .builders import SITE, site


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of profiles, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "fsdpq" / "sites"
    folder.mkdir(parents=True)
    return folder


def fsdpq(*args: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(main, ["sites", *args], prog_name="fsdpq")
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(fsdpq("list", "--json")[0])
    return found


@pytest.mark.usefixtures("own")
def test_the_list_has_all_shipped_ones() -> None:
    found = {item["name"]: item for item in listed()}
    assert list(found) == shipped()
    kempner = found["kempner-h100"]
    assert (kempner["gpu"], kempner["gpus_per_node"]) == ("H100-80GB-SXM", 4)
    assert (kempner["fabric"], kempner["rate"]) == ("infiniband", "NDR400")
    assert (kempner["preemption"], kempner["grace_s"]) == ("requeue", None)
    assert kempner["preemptible"] == {"partition": "kempner_requeue"}
    assert kempner["source"][0].startswith("KempnerInstitute/kempner-computing-handbook 330bcb97")
    assert (found["local"]["gpu"], found["local"]["preemption"]) == (None, None)


@pytest.mark.usefixtures("own")
def test_the_table_has_a_line_each() -> None:
    lines = fsdpq("list")[0].splitlines()
    assert lines[0].split() == ["NAME", "GPU", "FABRIC", "PREEMPTION", "CHECKED", "SOURCE"]
    assert [line.split()[0] for line in lines[1:]] == shipped()
    delta = next(line for line in lines if line.startswith("ncsa-delta-a100x4"))
    for cell in ("4 x A100-40GB-SXM4", "gpuA100x4-preempt: requeue 300 s", "2025-05-28"):
        assert f"  {cell}  " in delta


def test_ones_own_are_listed_and_a_broken_one_is_named(own: Path) -> None:
    (own / "mine.yaml").write_text(yaml.safe_dump({**SITE, "name": "other"}))
    (own / "broken.yaml").write_text("name: [")
    out, err = fsdpq("list")
    assert "mine" in [line.split()[0] for line in out.splitlines()]
    assert f"passed over: {own}/broken.yaml" in err
    assert "mine" not in fsdpq("list", "--shipped")[0]
    assert fsdpq("list", "--shipped")[1] == ""


def test_the_table_is_as_wide_as_the_terminal(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def size(fallback: tuple[int, int] = (80, 24)) -> os.terminal_size:
        return os.terminal_size((60, 24))

    wide = fsdpq("list")[0]
    monkeypatch.setattr(shutil, "get_terminal_size", size)
    assert fsdpq("list")[0] == wide  # into a pipe whole
    profiles = [load_profile(name, base=own) for name in shipped()]
    lines = report.sites_table(profiles, width=60).splitlines()
    assert max(len(line) for line in lines) == 60
    assert all(line.endswith("...") for line in lines[1:])


@pytest.mark.parametrize(
    ("width", "line"), [(None, "a  bcdefgh"), (10, "a  bcdefgh"), (9, "a  bcd..."), (2, "..")]
)
def test_lines_are_cut(width: int | None, line: str) -> None:
    assert fitted([("a", "bcdefgh")], width=width) == line


def test_the_page_is_a_table_of_markdown() -> None:
    profile = site(
        gpu={"model": "H100|x", "per_node": 8},
        preemptible={"qos": "cheap"},
        qos={"cheap": {"preempt": "cancel", "grace_s": 30}},
    )
    head, rule, row = report.sites_page([profile]).splitlines()
    assert head == "| name | gpu | fabric | preemption | checked | source |"
    assert rule == "| --- | --- | --- | --- | --- | --- |"
    assert row == r"| `here` | 8 x H100\|x | ethernet | cheap: cancel 30 s | 2026-11-29 | nowhere |"


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ({}, "-"),
        ({"partitions": {"a": {}}}, "-"),
        ({"partitions": {"a": {"preempt": "off"}}}, "off"),
        ({"terms": {"preempt": "off"}, "partitions": {"a": {"preempt": "cancel"}}}, "cancel"),
        ({"terms": {"preempt": "cancel"}}, "cancel"),
        ({"preemptible": {"comment": "x"}}, "comment: -"),
        (
            {
                "partitions": {"p": {"preempt": "requeue", "grace_s": 9}, "q": {"preempt": "off"}},
                "preemptible": {"partition": "p"},
            },
            "p: requeue 9 s",
        ),
    ],
)
def test_what_is_said_of_preemption(says: dict[str, Any], shown: str) -> None:
    cells = report.sites_page([site(**says)]).splitlines()[-1].split(" | ")
    assert cells[3] == shown


@pytest.mark.usefixtures("own")
def test_show_names_each_fact_and_its_source() -> None:
    data = json.loads(fsdpq("show", "alliance-fir", "--json")[0])
    facts = {item["fact"]: item for item in data["facts"]}
    assert facts["cpus_per_node"] == {
        "fact": "cpus_per_node",
        "value": 48,
        "source": "public job scripts for Fir",
        "confidence": "low",
    }
    assert facts["terms.time_limit"]["value"] == "7-00:00:00"
    assert facts["fabric.networks"]["value"] == ["IB*"]
    assert (data["name"], data["extends"], data["checked"]) == ("alliance-fir", None, "2026-08-06")


def test_show_as_text(own: Path) -> None:
    profile = {
        **SITE,
        "account_required": True,
        "options": {"exclusive": True},
        "quotas": [{"gpus_per_user": 8, "note": "of all"}, {"below_time_limit": "60"}],
        "partitions": {"p": {"time_limit": "90", "preempt": "off"}},
        "evidence": {"partitions": {"source": "scontrol", "confidence": "low"}},
        "notes": ["beware"],
    }
    (own / "mine.yaml").write_text(yaml.safe_dump(profile))
    out, _ = fsdpq("show", "mine")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == ["here: a cluster", "checked 2026-11-29"]
    assert "account_required yes own [1]" in lines
    assert "options.exclusive - own [1]" in lines
    assert "quotas.0 gpus_per_user: 8, note: of all own [1]" in lines
    assert "quotas.1 below_time_limit: 01:00:00 own [1]" in lines
    assert "partitions.p.time_limit 01:30:00 low [2]" in lines
    assert {"[1] nowhere", "[2] scontrol", "- beware"} <= set(lines)
    assert fsdpq("show", "fsdpq/sites/mine.yaml")[0] == out


@pytest.mark.usefixtures("own")
def test_an_unknown_name_is_one_message() -> None:
    _, err = fsdpq("show", "nowhere", code=1)
    assert err.startswith("Error: site: there is no profile 'nowhere'. ")
    assert "Error: No such command" in fsdpq("shaw", code=2)[1]
