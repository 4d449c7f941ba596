"""What holds for all rules: levels, order, sources of the site's own, versions, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.lint import (
    LEVELS,
    Case,
    Finding,
    Surroundings,
    lint,
    of_job,
    of_profile,
    version_of,
)
from orchestrator.lint.lists import name_list
from orchestrator.lint.nccl_variables import known, near
from orchestrator.lint.paths import storage_of
from orchestrator.profile import StorageProfile, load_profile, shipped
from orchestrator.submitting import linting

from .builders import SITE, plan, site, spec

NOTHING = Surroundings()


def profile_case(around: Surroundings = NOTHING, **changes: Any) -> Case:
    return of_profile(site(**changes), file="site.yaml", around=around)


def job_case(at: dict[str, Any], run_dir: str | None = None, **job: Any) -> Case:
    return of_job(
        spec(**job),
        site(**at),
        file="job.yaml",
        site_file="site.yaml",
        run_dir=run_dir,
        around=NOTHING,
    )


def levels(found: tuple[Finding, ...], rule: str) -> list[str]:
    return [one.level for one in found if one.rule == rule]


@pytest.mark.parametrize("name", shipped())
def test_nothing_is_wrong_with_a_shipped_profile(name: str) -> None:
    profile = load_profile(name, base=Path("/nowhere"))
    found = lint(of_profile(profile, file=name, around=NOTHING))
    assert [one.line() for one in found if one.level != "info"] == []


def test_a_script_that_is_often_copied() -> None:
    """The environment of public sbatch files for FSDP2 on an InfiniBand cluster."""
    variables = {
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_NET_GDR_LEVEL": "2",
        "NCCL_TIMEOUT": "1800",
        "NCCL_IB_DISABLE": "0",
    }
    found = lint(job_case({"fabric": {"kind": "infiniband"}}, nodes=4, env=variables))
    mine = {one.key.removeprefix("env."): one for one in found if one.file == "job.yaml"}
    assert {name: (one.rule, one.level) for name, one in mine.items()} == {
        "NCCL_IB_GID_INDEX": ("gid-index-on-ib", "warn"),
        "NCCL_NET_GDR_LEVEL": ("gdr-level-int", "warn"),
        "NCCL_TIMEOUT": ("not-an-nccl-var", "warn"),
        "NCCL_IB_DISABLE": ("ib-disable-zero", "info"),
    }
    assert "RoCE only" in mine["NCCL_IB_GID_INDEX"].why
    assert "2.21" in mine["NCCL_IB_GID_INDEX"].why
    assert "write PXB" in mine["NCCL_NET_GDR_LEVEL"].do
    assert "init_process_group(timeout=" in mine["NCCL_TIMEOUT"].do
    assert "0 is the default" in mine["NCCL_IB_DISABLE"].why


def test_the_worst_of_a_file_comes_first() -> None:
    case = profile_case(env={"NCCL_IB_DISABLE": "0", "NCCL_IB_SL": "99", "NCCL_TIMEOUT": "1"},
                        fabric={"kind": "infiniband"})  # fmt: skip
    found = [one.level for one in lint(case)]
    assert set(found) == set(LEVELS)
    assert found == sorted(found, key=LEVELS.index)


# --- a site that knows better -------------------------------------------------------------------

VENDOR = {"source": "the vendor's nccl.conf", "confidence": "high"}
ROCE: dict[str, Any] = {"fabric": {"kind": "roce"}, "env": {"NCCL_IB_GID_INDEX": "3"}}


@pytest.mark.parametrize(
    ("evidence", "level"),
    [
        ({"env.NCCL_IB_GID_INDEX": VENDOR}, "info"),
        ({"env": {**VENDOR, "confidence": "medium"}}, "info"),
        ({"env": {**VENDOR, "confidence": "low"}}, "warn"),
        ({"env": "I copied it"}, "warn"),  # with the profile's own confidence
        ({"fabric": VENDOR}, "warn"),
        ({"env": {**VENDOR, "source": "site.yaml"}}, "warn"),
        ({}, "warn"),
    ],
)
def test_advice_gives_way_to_a_source_of_the_sites_own(evidence: Any, level: str) -> None:
    found = lint(profile_case(**ROCE, evidence=evidence))
    assert levels(found, "gid-index-forced") == [level]
    if level == "info":
        (one,) = [one for one in found if one.rule == "gid-index-forced"]
        assert "the site itself wants it so: the vendor's nccl.conf" in one.why


def test_a_good_source_of_the_whole_vouches_for_no_setting() -> None:
    found = lint(profile_case(**ROCE, confidence="high"))
    assert levels(found, "gid-index-forced") == ["warn"]


def test_what_cannot_work_stays_an_error_whoever_says_so() -> None:
    case = profile_case(env={"NCCL_IB_TIMEOUT": "50"}, evidence={"env": VENDOR},
                        fabric={"kind": "infiniband"})  # fmt: skip
    assert levels(lint(case), "ib-timeout-range") == ["error"]


def test_a_job_has_no_source_for_its_values() -> None:
    at = {**ROCE, "evidence": {"env": VENDOR}}
    job = job_case(at, nodes=2, env={"NCCL_IB_GID_INDEX": "3"})
    assert levels(lint(job), "gid-index-forced") == ["warn"]
    assert levels(lint(job_case(at, nodes=2)), "gid-index-forced") == ["info"]


def test_an_own_profile_inherits_the_source_and_not_for_what_it_changes(tmp_path: Path) -> None:
    data = {**SITE, **ROCE, "name": "vendor", "confidence": "high", "evidence": {"env": VENDOR}}
    (tmp_path / "vendor.yaml").write_text(yaml.safe_dump(data))
    own = {"extends": "vendor.yaml", "name": "own", "env": {"NCCL_ALGO": "Ring"}}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(own))
    found = linting.profile_findings(path, around=NOTHING)
    assert levels(found, "gid-index-forced") == ["info"]
    assert levels(found, "algo-proto-forced") == ["warn"]


# --- what a job will get ------------------------------------------------------------------------


def test_a_job_is_told_of_what_it_will_get() -> None:
    at: dict[str, Any] = {
        "fabric": {"kind": "infiniband"},
        "env": {"NCCL_IB_SL": "99"},
        "env_host": {"NCCL_IB_TIMEOUT": "50"},
        "env_container": {"NCCL_IB_RETRY_CNT": "50"},
        "env_multi_node": {"NCCL_NET": "Socket"},
    }

    def files(**job: Any) -> list[tuple[str, str]]:
        found = lint(job_case(at, **job))
        return [(one.file, one.key) for one in found if one.level == "error"]

    several = [
        ("site.yaml", "env_host.NCCL_IB_TIMEOUT"),
        ("site.yaml", "env.NCCL_IB_SL"),
        ("site.yaml", "env_multi_node.NCCL_NET"),
    ]
    assert files(nodes=2) == several
    assert files(nodes=1) == several[:2]
    assert files(nodes=2, env={"NCCL_IB_SL": "1", "NCCL_NET": "IB"}) == several[:1]
    of_all = {one.key for one in lint(profile_case(**at)) if one.level == "error"}
    assert of_all == {*(key for _, key in several), "env_container.NCCL_IB_RETRY_CNT"}


def test_what_a_job_gives_wins_over_the_sites_variables_for_several_nodes() -> None:
    at = site(env_multi_node={"NCCL_NET": "IB", "NCCL_IB_TC": "41"})
    made = plan(spec(nodes=2, env={"NCCL_NET": "Socket"}), at)
    assert dict(made.env)["NCCL_NET"] == "Socket"
    assert made.multi_node_env == (("NCCL_IB_TC", "41"),)


def test_a_job_that_its_site_has_no_place_for_is_looked_at_all_the_same() -> None:
    found = lint(job_case({}, preemptible=True, env={"NCCL_TIMEOUT": "1"}))
    assert {"beyond-the-limits", "not-an-nccl-var"} <= {one.rule for one in found}


# --- versions and names -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.20.5", []), ("2.21", ["warn"]), ("2.30.7", ["warn"]), (None, ["warn"])],
)
def test_a_rule_holds_from_its_version_on(version: str | None, expected: list[str]) -> None:
    around = Surroundings(version=version_of(version) if version else None)
    found = lint(profile_case(around, **ROCE))
    assert levels(found, "gid-index-forced") == expected
    for one in found:
        if one.rule == "gid-index-forced":
            assert one.since == "2.21"
            assert "(NCCL 2.21 and later)" in one.line()


def test_the_variables_of_nccl() -> None:
    assert len(known()) > 250
    assert known()["NCCL_SOCKET_IFNAME"].current
    # Read in another way since 2.30, so that no literal is left; documented all the same.
    assert known()["NCCL_DEBUG"].current
    assert not known()["NCCL_WORK_FIFO_DEPTH"].current
    merge = known()["NCCL_IB_MERGE_NICS"]  # first seen in 2.20.5; nobody looked at 2.19
    assert [merge.too_new_for(version_of(text)) for text in ("2.18.6", "2.19.4", "2.20.3")] == [
        True,
        False,
        False,
    ]
    assert near("NCCL_MIN_CHANNELS") == "NCCL_MIN_NCHANNELS"


@pytest.mark.parametrize("name", ["NCCL_MIN_CHANNELS", "NCCL_IB_HCAS"])
def test_a_misspelt_variable_gets_the_near_one(name: str) -> None:
    (one,) = [one for one in lint(profile_case(env={name: "1"})) if one.rule == "not-an-nccl-var"]
    assert one.do.startswith("write NCCL_")


# --- secrets, lists, paths ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "secret",
    ["hf_abcdefghijklmnopqrstuvwxyz", "http://me:hunter2@proxy:3128", "AKIAABCDEFGHIJKLMNOP"],
)
def test_a_secret_is_never_repeated(secret: str) -> None:
    at = {"env": {"NCCL_SOCKET_IFNAME": secret, "X": "1"}, "fabric": {"kind": "infiniband"}}
    found = lint(job_case(at, args=["--x", secret], env={"NCCL_NET": secret, "X": secret}))
    assert "secret-in-the-open" in {one.rule for one in found}
    for one in found:
        assert secret not in str(one.to_json())
        assert secret not in one.line()


@pytest.mark.parametrize(
    ("text", "names", "matched"),
    [
        ("mlx5_1", ("mlx5_1", "mlx5_10", "mlx5_2"), ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1:1", ("mlx5_1", "mlx5_10"), ["mlx5_1"]),
        ("^docker,lo", ("docker0", "lo", "eth0"), ["eth0"]),
        ("^=docker0", ("docker0", "docker1"), ["docker1"]),
    ],
)
def test_lists_as_nccl_reads_them(text: str, names: tuple[str, ...], matched: list[str]) -> None:
    assert [name for name in names if name_list(text).matches(name)] == matched


@pytest.mark.parametrize(
    ("key", "path", "found"),
    [
        ("/scratch/$USER", "/scratch/alice/x", True),
        ("/scratch/$USER", "/scratch", False),
        ("/n/<lab>/data/", "/n/my_lab/data", True),
        ("/l/{large,fast}/x", "/l/fast/x/y", True),
        ("/l/{large,fast}/x", "/l/slow/x/y", False),
        ("$SCRATCH", "/s/1/runs", True),
        ("${SCRATCH}/runs", "/s/1/runs", True),
        ("$WORK", "/s/1/runs", False),
        ("~/runs", "/home/alice/runs/x", True),
        ("/scratch", "/scratch2/x", False),
        ("/a.b", "/aXb/x", False),
    ],
)
def test_the_file_system_of_a_path(key: str, path: str, found: bool) -> None:
    environ = {"SCRATCH": "/s/1", "HOME": "/home/alice"}
    hit = storage_of(path, {key: StorageProfile(purge_days=9)}, environ)
    assert (hit is not None and hit[0] == key) == found


def test_the_longest_file_system_counts() -> None:
    inner, outer = StorageProfile(node_local=True), StorageProfile()
    for storage in ({"/a": outer, "/a/b": inner}, {"/a/b": inner, "/a": outer}):
        assert storage_of("/a/b/c", storage, {}) == ("/a/b", inner)
        assert storage_of("/a/c", storage, {}) == ("/a", outer)


TOKEN = "hf_" + "a" * 30


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("sbatch.wckey", {"sbatch": {"wckey": TOKEN}}),
        ("reservation", {"reservation": TOKEN}),
        ("modules.0", {"modules": [TOKEN]}),
        ("container.image", {"container": {"image": "docker://me:hunter2secret@reg/img:1"}}),
        ("args.1", {"args": ["--hub", TOKEN]}),
    ],
)
def test_a_secret_anywhere_in_a_job_file(key: str, changes: dict[str, Any]) -> None:
    case = job_case({"container": {"runtime": "pyxis"}}, **changes)
    assert [one.key for one in lint(case) if one.rule == "secret-in-the-open"] == [key]
