"""What Slurm shows, also where people wrote into it what they should not have."""

from __future__ import annotations

import pytest

from orchestrator.slurm import accounting, inventory, words

from . import clusters
from .clusters import VERSIONS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-12:00:00", 129600), ("00:30:00", 1800), ("30:00", 1800), ("30 sec", 30), ("0", 0),
        ("UNLIMITED", None), ("INFINITE", None), ("NONE", None), ("(null)", None), ("", None),
        (None, None), ("-1", None), ("1h", None), ("Partition_Limit", None), ("9" * 40, None),
    ],
)  # fmt: skip
def test_times(text: str | None, seconds: int | None) -> None:
    assert words.seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:h100:8", {"h100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu", {"": 1}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("gpu:h100:4(S:0,2),gpu:a100:2(S:1),nvme:no_consume:1", {"h100": 4, "a100": 2}),
        ("gpu:a100:no_consume:4", {"a100": 4}),
        ("gpu:1g.10gb:7,gpu:h100:7", {"1g.10gb": 7, "h100": 7}),
        ("gpu:nvidia_a100-sxm4-80gb:4", {"nvidia_a100-sxm4-80gb": 4}),
        ("gpu:h100:0", {}),
        ("shard:16,mps:100", {}),
        ("gpu:h100:4,gpu:h100:4", {"h100": 8}),
        ("(null)", {}),
        (None, {}),
        ("gpu:h100:8)(", {}),
        ("gpu:" * 50, {}),
    ],
)
def test_gpus(text: str | None, gpus: dict[str, int]) -> None:
    assert words.gpus(text) == gpus


def test_free_text_is_no_key() -> None:
    line = (
        "NodeName=n1 Gres=gpu:h100:2 State=IDLE Partitions=spot CfgTRES=cpu=8"
        " Comment=x Gres=gpu:h100:99 State=FUTURE Reason=dead Partitions=prod [root@2026]"
    )
    (node,) = inventory.nodes(line)
    assert node.gpus == (("h100", 2),)
    assert node.partitions == ("spot",)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "No nodes in the system", "slurm_load: error", "=" * 500]
)
def test_what_is_no_answer(text: str) -> None:
    assert inventory.nodes(text) == ()
    assert inventory.partitions(text) == ()
    assert inventory.sinfo(text) == ()
    assert accounting.all_qos(text) == ()
    assert accounting.associations(text, cluster=None) == ()
    assert words.table(text) == {}


def test_nodes_that_are_not_there_do_not_count() -> None:
    lines = [f"NodeName=n{i} Gres=gpu:2 State={word}" for i, word in enumerate(_STATES)]
    assert len(inventory.nodes("\n".join(lines))) == 3


_STATES = ("IDLE", "DOWN*+DRAIN", "MIXED+CLOUD", "FUTURE", "INVALID_REG+DRAIN")


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_of_every_version(version: str) -> None:
    found = {one.name: one for one in inventory.partitions(clusters.text(version, "partition"))}
    mixed, closed, wall = found["mixed"], found["closed"], found["wall"]
    assert (mixed.exclusive, mixed.max_nodes, mixed.qos) == (True, 4, "partlimit")
    assert (mixed.accounts, mixed.max_time_s, mixed.default_time_s) == (("research",), 172800, 3600)
    assert mixed.nodes == {"n1", "n2", "n5"}
    assert (closed.hidden, closed.groups, closed.max_time_s) == (True, ("root",), 1800)
    assert (wall.state, wall.denied_accounts, wall.max_cpus) == ("DRAIN", ("vision",), 4)
    assert (wall.allowed_qos, wall.max_memory) == (("high", "normal"), True)
    assert found["spot"].default
    assert not found["spot"].default_memory


@pytest.mark.parametrize("version", VERSIONS)
def test_accounting_of_every_version(version: str) -> None:
    rows = clusters.text(version, "assoc") + "other|lab|alice||normal||||\n"
    own = {one.account: one for one in accounting.associations(rows, cluster="fsdpq")}
    assert set(own) == {"research", "vision"}
    assert set(own["research"].qos) == {"normal", "high", "scav"}
    assert own["vision"].max_wall_s == 172800
    qos = {one.name: one for one in accounting.all_qos(clusters.text(version, "qos"))}
    assert (qos["high"].preempts, qos["high"].max_gpus, qos["high"].max_nodes) == (("scav",), 8, 4)
    assert (qos["scav"].mode, qos["scav"].grace_s, qos["scav"].exempt_s) == ("cancel", 120, 1800)
    assert qos["scav"].beyond_partition
    assert qos["normal"].mode is None


@pytest.mark.parametrize("version", VERSIONS)
def test_settings_of_every_version(version: str) -> None:
    config = words.table(clusters.text(version, "config"))
    assert config["SelectType"] == "select/cons_tres"
    assert config["SLURM_VERSION"].startswith(version)
    assert words.seconds(config["KillWait"]) == 5
    assert "PlugStackConfig" not in config
