from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import resources
from orchestrator.errors import ProfileError
from orchestrator.profile import FabricProfile, load_profile, shipped

from .builders import SITE


def write(folder: Path, file: str = "own", **data: Any) -> Path:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def complaint(site: str, base: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        load_profile(site, base=base)
    return str(caught.value)


def test_the_shipped_ones() -> None:
    assert {"local", "kempner-h100", "kempner-a100"} <= set(shipped())
    assert shipped() == sorted(shipped())


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_profile_loads_and_says_where_it_is_from(name: str) -> None:
    profile = load_profile(name, base=Path("/nowhere"))
    assert profile.name == name
    assert all(source.strip() for source in profile.source)
    assert profile.source
    assert profile.description
    if profile.scheduler == "slurm":
        assert (profile.gpu is None) == name.startswith("generic-")
        assert profile.default_partition in {*profile.partitions, None}
    else:
        assert profile.partitions == {}


def test_nothing_but_profiles_is_shipped() -> None:
    assert all(e.name.endswith(".yaml") for e in resources.root("site").iterdir())


@pytest.mark.parametrize("site", ["nowhere", "", "Local", "local.yml.bak", "kempner"])
def test_an_unknown_site_lists_the_shipped_ones(site: str) -> None:
    message = complaint(site, Path("/nowhere"))
    assert f"there is no profile {site!r}" in message
    assert "`fsdpq sites list` shows the shipped ones" in message
    assert "path of its file" in message
    assert sum(name in message for name in shipped()) <= 5


@pytest.mark.parametrize(
    ("site", "near"),
    [("kempner-h10", "kempner-h100"), ("Local", "local"), ("kempner", "kempner-")],
)
def test_a_name_that_is_nearly_right(site: str, near: str) -> None:
    assert f"Did you mean {near}" in complaint(site, Path("/nowhere"))


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, **SITE)
    for site in (str(path), "own.yaml", "./own.yaml", "../" + tmp_path.name + "/own.yaml"):
        assert load_profile(site, base=tmp_path).name == "here"


@pytest.mark.parametrize("site", ["own.yaml", "a/own.yaml", "own.yml", "/nowhere/own.yaml"])
def test_a_file_that_is_not_there(tmp_path: Path, site: str) -> None:
    assert "there is no such file" in complaint(site, tmp_path)


def test_a_home_that_is_not_there(tmp_path: Path) -> None:
    assert "no-such-user-x" in complaint("~no-such-user-x/own.yaml", tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 4}, "gpus: is no key here. Did you mean 'gpu'?"),
        ({"source": "here"}, "source"),
        ({"confidence": "sure"}, "confidence"),
        ({"gpu": {"model": "H100", "per_node": 0}}, "gpu.per_node"),
        ({"gpu": {"model": "H100", "per_node": 4, "request": "tres"}}, "gpu.request"),
        ({"gpu": {"model": "H100", "per_node": 4, "request": "gres-typed"}}, "there is no `type`"),
        ({"options": {"--exclusive": True}}, "without dashes"),
        ({"options": {"hint": "a b$"}}, "options.hint"),
        ({"source": []}, "source"),
        ({"forbidden": {"dependency": "no"}}, "without which fsdpq loses hold of the run"),
        ({"forbidden": {"nodes": "no"}}, "without which fsdpq loses hold of the run"),
        ({"fabric": {"kind": "roce", "busbw_gbs": float("inf")}}, "fabric.busbw_gbs"),
        ({"storage": {"/a\x1b[31m": {}}}, "control character"),
        ({"preemptible": {"grace_s": 3}}, "give the partition, the qos or the comment"),
        ({"scripts": [{"path": "set_env.sh"}]}, "must be an absolute path"),
        ({"container": {"runtime": "pyxis", "mounts": ["opt"]}}, "must be an absolute path"),
        ({"container": {"runtime": "docker"}}, "container.runtime"),
        ({"evidence": {"gpu": "scontrol show node"}}, "the profile says nothing of gpu"),
        ({"partitions": {"p": {"preempts": "off"}}}, "Did you mean 'preempt'?"),
        ({"partitions": {"p": {"preempt": False}}}, "partitions.p.preempt"),
        ({"partitions": {"p$": {}}}, "partitions.p$"),
        ({"partitions": {"p": {"time_limit": "1h"}}}, "partitions.p.time_limit"),
        ({"env": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"fabric": {"kind": "token ring"}}, "fabric.kind"),
        ({"fabric": None}, "fabric"),
        ({"memory": "all", "memory_gib_per_gpu": 9}, "and not both"),
        ({"scheduler": "pbs"}, "scheduler"),
        ({"cloud": "ovh"}, "cloud"),
        ({"partitions": {"p": {"cloud": "ovh"}}}, "partitions.p.cloud"),
        ({"stop_on_rebalance": True}, "needs `cloud: aws`"),
        ({"stop_on_rebalance": True, "cloud": "gcp"}, "needs `cloud: aws`"),
    ],
)
def test_mistakes(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write(tmp_path, **{**SITE, **changes})
    message = complaint(str(path), tmp_path)
    assert words in message
    assert message.startswith(f"{path}: ")


def test_a_partition_called_off(tmp_path: Path) -> None:
    text = yaml.safe_dump(SITE) + "partitions:\n  on: {preempt: off, time_limit: 2-00:00:00}\n"
    (tmp_path / "own.yaml").write_text(text)
    partition = load_profile("own.yaml", base=tmp_path).partitions["on"]
    assert (partition.preempt, partition.time_limit) == ("off", 172800)


def test_one_profile_extends_another(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        extends="kempner-h100",
        name="mine",
        account_required=False,
        partitions={"kempner_requeue": {"preempt": "cancel"}, "lab": {}},
        modules=["cuda"],
    )
    parent = load_profile("kempner-h100", base=tmp_path)
    mine = load_profile(str(path), base=tmp_path)
    assert (mine.name, mine.account_required, mine.modules) == ("mine", False, ("cuda",))
    assert (mine.gpu, mine.fabric, mine.source) == (parent.gpu, parent.fabric, parent.source)
    assert set(mine.partitions) == {*parent.partitions, "lab"}
    changed, before = mine.partitions["kempner_requeue"], parent.partitions["kempner_requeue"]
    assert changed.preempt == "cancel"
    assert (changed.constraint, changed.time_limit) == (before.constraint, before.time_limit)


def test_null_takes_away_what_the_parent_says(tmp_path: Path) -> None:
    write(tmp_path, "base", **SITE, cpus_per_node=8, partitions={"a": {"max_nodes": 2}, "b": {}})
    over: dict[str, Any] = {
        "cpus_per_node": None,
        "partitions": {"a": {"max_nodes": None}, "b": None},
    }
    mine = load_profile(str(write(tmp_path, extends="base.yaml", name="m", **over)), base=tmp_path)
    assert (mine.cpus_per_node, set(mine.partitions)) == (None, {"a"})
    assert mine.partitions["a"].max_nodes is None
    assert not {"cpus_per_node", "partitions.b"} & set(mine.facts())


def test_extending_goes_one_level(tmp_path: Path) -> None:
    write(tmp_path, "a", extends="local", name="a")
    write(tmp_path, "b", extends="a.yaml", name="b")
    write(tmp_path, "c", extends="c.yaml", name="c")
    assert load_profile("a.yaml", base=tmp_path).name == "a"
    assert "one level is allowed" in complaint("b.yaml", tmp_path)
    assert "one level is allowed" in complaint("c.yaml", tmp_path)


@pytest.mark.parametrize(
    ("extends", "words"),
    [
        ("nowhere", "own.yaml: extends: there is no profile 'nowhere'"),
        ("x.yaml", "no such file"),
        (5, "must name a profile"),
    ],
)
def test_a_parent_that_is_none(tmp_path: Path, extends: object, words: str) -> None:
    write(tmp_path, **{**SITE, "extends": extends})
    assert words in complaint("own.yaml", tmp_path)


def test_a_fact_has_the_most_exact_evidence(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        **{
            **SITE,
            "gpu": {"model": "H100", "per_node": 8},
            "cpus_per_node": 96,
            "evidence": {
                "gpu": "the handbook",
                "gpu.per_node": {"source": "a colleague", "confidence": "low"},
            },
        },
    )
    here = load_profile(str(path), base=tmp_path)
    told = {fact: here.evidence_of(fact) for fact in here.facts()}
    assert (told["gpu.model"].source, told["gpu.model"].confidence) == ("the handbook", "own")
    assert (told["gpu.per_node"].source, told["gpu.per_node"].confidence) == ("a colleague", "low")
    assert told["cpus_per_node"].source == here.source[0]
    assert "name" not in told


def test_inherited_facts_keep_their_source(tmp_path: Path) -> None:
    parent = load_profile("kempner-h100", base=tmp_path)
    changes: dict[str, Any] = {"gpu": {"per_node": 2}, "default_partition": "lab"}
    told: dict[str, Any] = {
        "source": ["seen by me"],
        "confidence": "own",
        "evidence": {"gpu": "nvidia-smi"},
    }
    mine = load_profile(
        str(write(tmp_path, extends="kempner-h100", **changes, **told)), base=tmp_path
    )
    assert mine.source == ("seen by me", *parent.source)
    assert mine.evidence_of("gpu.per_node").source == "nvidia-smi"
    assert mine.evidence_of("gpu.model") == parent.evidence_of("gpu.model")
    assert mine.evidence_of("default_partition").source == "seen by me"
    assert mine.evidence_of("fabric.rate").confidence == "high"


def test_a_profile_in_the_users_folder(tmp_path: Path) -> None:
    """It goes before a shipped one, and may extend the one whose name it has."""
    own = tmp_path / "sites"
    own.mkdir()
    write(own, "kempner-h100", extends="kempner-h100", default_partition="lab")
    write(own, "mine", **{**SITE, "name": "mine"})
    assert load_profile("kempner-h100", base=tmp_path, own=own).default_partition == "lab"
    for spelled in ("sites/kempner-h100.yaml", "sites/../sites/kempner-h100.yaml"):
        assert load_profile(spelled, base=tmp_path, own=own).default_partition == "lab"
    assert load_profile("kempner-h100", base=tmp_path).default_partition == "kempner_h100"
    assert load_profile("mine", base=tmp_path, own=own).name == "mine"
    with pytest.raises(ProfileError, match=r"yours in .* too; for one"):
        load_profile("nowhere", base=tmp_path, own=own)


@pytest.mark.parametrize(
    ("kind", "given", "names"),
    [
        ("infiniband", [], ("IB*",)),
        ("efa", [], ("AWS Libfabric", "Libfabric", "OFI")),
        ("efa", ["X"], ("X",)),
        ("none", [], ()),
        ("unknown", [], ()),
    ],
)
def test_the_names_of_the_network(kind: str, given: list[str], names: tuple[str, ...]) -> None:
    fabric = FabricProfile.model_validate({"kind": kind, "networks": given})
    assert fabric.names == names


def test_a_shipped_profile_extends_a_shipped_one(tmp_path: Path) -> None:
    """Whatever the user's folder calls by the same name."""
    own = tmp_path / "sites"
    own.mkdir()
    write(own, "kempner-h100", **{**SITE, "name": "kempner-h100", "fabric": {"kind": "roce"}})
    assert load_profile("kempner-h100", base=tmp_path, own=own).fabric.kind == "roce"
    shipped_one = load_profile("kempner-h200", base=tmp_path, own=own)
    assert shipped_one == load_profile("kempner-h200", base=tmp_path)
