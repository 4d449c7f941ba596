"""What a job asks of the network's topology, and how its mesh lies on it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.launchplan import placement
from orchestrator.launchplan.plan import settle
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec
from orchestrator.spec.train import mesh_shape

from .builders import plan, site, spec

GPU = {"model": "H100", "per_node": 8}
TREE = {"kind": "tree", "nodes_per_switch": 4, "switches": True}
WAITS = {**TREE, "switches_wait": "10:00"}
BLOCK = {"kind": "block", "nodes_per_block": 4}


def at(topology: dict[str, Any] | None = None) -> SiteProfile:
    return site(gpu=GPU, fabric={"kind": "infiniband", "topology": topology})


def trains(nodes: int, mesh: object = None, **keys: Any) -> JobSpec:
    train = {
        "model": {"path": "/m"},
        "data": {"text_files": ["/d"], "seq_len": 8},
        "steps": 10,
        "global_batch": 3840,
        **({} if mesh is None else {"mesh": mesh}),
    }
    return spec(script=None, nodes=nodes, train=train, **keys)


def options(job: JobSpec, topology: dict[str, Any] | None) -> dict[str, str]:
    return dict(plan(job, at(topology)).directives)


# --- --switches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "asked", "topology", "expected"),
    [
        (4, None, None, None),
        (4, 1, None, "1"),
        (4, "1@30:00", TREE, "1@30:00"),
        (9, 3, TREE, "3"),
        (4, None, TREE, None),
        (4, None, WAITS, "1@00:10:00"),
        (9, None, WAITS, "3@00:10:00"),
        (1, None, WAITS, None),
        (4, 2, WAITS, "2"),
    ],
)
def test_switches(
    nodes: int, asked: object, topology: dict[str, Any] | None, expected: str | None
) -> None:
    assert options(spec(nodes=nodes, switches=asked), topology).get("switches") == expected


@pytest.mark.parametrize(
    ("nodes", "topology", "words"),
    [
        (4, BLOCK, "does not heed --switches"),
        (4, {"kind": "none"}, "does not heed --switches"),
        (4, {"kind": "tree", "switches": False}, "does not heed --switches"),
        (5, TREE, "5 nodes do not fit on 1 of 4 nodes each; the job would wait for nothing. Use"),
    ],
)
def test_switches_that_make_no_sense(nodes: int, topology: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        plan(spec(nodes=nodes, switches="1@5"), at(topology))


def test_one_machine_has_no_switches() -> None:
    with pytest.raises(SpecError, match="switches: the site local has no Slurm"):
        plan(spec(switches=1), site(scheduler="local"))


def test_a_smaller_job_asks_for_fewer_switches() -> None:
    elastic = {"min_nodes": 1}
    made = plan(spec(nodes=6, elastic=elastic), at(WAITS))
    assert dict(made.directives)["switches"] == "2@00:10:00"
    assert made.switches == tuple((n, f"{2 if n > 4 else 1}@00:10:00") for n in (5, 4, 3, 2))
    assert plan(spec(nodes=6, elastic=elastic, switches=3), at(WAITS)).switches == ()
    assert plan(spec(nodes=6, elastic=elastic), at(TREE)).switches == ()


@pytest.mark.parametrize(
    ("patience_s", "switches", "warns"),
    [(600, "2@10:00", True), (601, "2@10:00", False), (300, "2", True), (301, "2", False)],
)
def test_patience_that_ends_before_the_wait_for_switches(
    patience_s: int, switches: str, warns: bool
) -> None:
    elastic = {"min_nodes": 2, "patience_s": patience_s}
    found = list(placement.notes(spec(nodes=4, switches=switches, elastic=elastic), at(), nproc=8))
    assert [note.startswith("elastic.patience_s") for note in found] == [True] * warns


# --- the mesh ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "topology", "expected"),
    [
        (4, None, (4, 8)),
        (1, None, (1, 8)),
        (4, TREE, (4, 8)),
        (8, BLOCK, (8, 8)),
        (8, {**BLOCK, "shard_within": "block"}, (2, 32)),
        (6, {**BLOCK, "shard_within": "block"}, (2, 24)),
        (5, {**BLOCK, "shard_within": "block"}, (5, 8)),
        (2, {**BLOCK, "shard_within": "block"}, (1, 16)),
    ],
)
def test_hsdp_without_sizes_shards_within_a_node_or_a_block(
    nodes: int, topology: dict[str, Any] | None, expected: tuple[int, int]
) -> None:
    job = settle(trains(nodes, "hsdp"), at(topology))
    assert job.train is not None
    assert mesh_shape(job.train, nodes * 8) == expected
    assert settle(job, at(topology)) == job


def test_hsdp_counts_the_gpus_that_the_job_uses() -> None:
    job = settle(trains(4, "hsdp", gpus_per_node=4), at())
    assert job.train is not None
    assert mesh_shape(job.train, 16) == (4, 4)


def test_given_sizes_stay() -> None:
    for mesh in ("fsdp", {"replicate": 2}, {"replicate": "auto", "shard": 16}):
        assert settle(trains(4, mesh), at()) == trains(4, mesh)


def test_an_elastic_run_keeps_its_shard_groups() -> None:
    job = trains(4, "hsdp", elastic={"min_nodes": 1})
    assert plan(job, at()).policy.sizes == (4, 3, 2, 1)
    blocks = at({**BLOCK, "shard_within": "block"})
    assert plan(trains(8, "hsdp", elastic={"min_nodes": 1}), blocks).policy.sizes == (8, 4)


@pytest.mark.parametrize(
    ("mesh", "topology", "words"),
    [
        ({"replicate": 4}, None, None),
        ({"replicate": 8}, None, None),
        ({"replicate": 2}, TREE, None),
        ({"replicate": 1}, TREE, None),
        ({"replicate": "auto", "shard": 2}, None, None),
        ({"replicate": 2}, {"kind": "tree", "nodes_per_switch": 3}, "and a leaf switch of this"),
        ({"replicate": 2}, {"kind": "block", "nodes_per_block": 1}, "and a block of this site"),
    ],
)
def test_shard_groups_that_cross_a_switch_or_block(
    mesh: object, topology: dict[str, Any] | None, words: str | None
) -> None:
    found = list(placement.notes(trains(4, mesh), at(topology), nproc=8))
    assert (words is None and not found) or (len(found) == 1 and str(words) in found[0])


@pytest.mark.parametrize("mesh", [{"replicate": 8, "shard": 3}, {"replicate": 2, "shard": 12}])
def test_shard_groups_that_cross_nodes(mesh: dict[str, int]) -> None:
    nodes = 3
    found = list(placement.notes(trains(nodes, mesh), at(), nproc=8))
    assert len(found) == 1
    assert f"shard groups of {mesh['shard']} ranks cross nodes of 8 GPUs" in found[0]


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ("fsdp", None),
        ({"replicate": 4}, "2"),
        ({"replicate": 2}, "4"),
        ({"replicate": 8}, None),  # a node each
        ("hsdp", "4"),
    ],
)
def test_a_block_site_keeps_each_shard_group_in_one_block(
    mesh: object, expected: str | None
) -> None:
    block = {**BLOCK, "segment": True, "shard_within": "block"}
    assert options(trains(8, mesh), block).get("segment") == expected
    assert "segment" not in options(trains(8, mesh), {**block, "segment": False})


# --- the order of the nodes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "scheduler", "topology", "ordered"),
    [
        (2, "slurm", None, True),
        (2, "slurm", TREE, True),
        (2, "slurm", BLOCK, True),
        (2, "slurm", {"kind": "none"}, False),
        (1, "slurm", TREE, False),
        (1, "local", None, False),
    ],
)
def test_when_nodes_are_ordered(
    nodes: int, scheduler: str, topology: dict[str, Any] | None, ordered: bool
) -> None:
    fabric = {"kind": "infiniband", "topology": topology}
    made = plan(spec(nodes=nodes), site(scheduler=scheduler, fabric=fabric))
    assert made.node_order is ordered


@pytest.mark.parametrize(
    ("nodes", "names", "size", "expected"),
    [
        ("n[1-4]", ("a", "b"), 2, None),
        ("n[1-4]", ("a", "b", "c"), 2, "runs over 3 switches or blocks (a, b, c), and 2 would"),
        ("n[1-4]", tuple("abcdef"), 4, "(a, b, c, d, ...), and 1 would hold"),
        ("n[1-4]", ("a", "b", "c"), None, None),
        ("n[1-4]", (), 2, None),
    ],
)
def test_an_allocation_that_is_spread(
    nodes: str, names: tuple[str, ...], size: int | None, expected: str | None
) -> None:
    found = placement.spread(nodes, names, per_group=size)
    assert found == expected if expected is None else expected in str(found)
