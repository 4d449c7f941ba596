from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import SpecError
from orchestrator.keys.topology import TopologyProfile, parse_switches

from .builders import site, spec


def topology(**keys: Any) -> TopologyProfile:
    return TopologyProfile.model_validate(keys)


@pytest.mark.parametrize(
    ("given", "text", "meaning"),
    [
        (1, "1", (1, None)),
        ("2", "2", (2, None)),
        ("2@30", "2@30", (2, 1800)),
        ("1@10:30", "1@10:30", (1, 630)),
        ("3@1-12", "3@1-12", (3, 129600)),
    ],
)
def test_switches_are_spelled_as_sbatch_spells_them(
    given: object, text: str, meaning: tuple[int, int | None]
) -> None:
    assert spec(switches=given).switches == text
    assert parse_switches(text) == meaning


@pytest.mark.parametrize(
    "given", [0, -1, True, 1.5, "", "@10", "1@", "1@soon", "1@0", "x", "01", "1 @5", "1@5\n", [1]]
)
def test_what_is_no_number_of_switches(given: object) -> None:
    with pytest.raises(SpecError) as caught:
        spec(switches=given)
    assert str(caught.value).startswith("job.yaml: switches: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"kind": "block", "switches": True}, "switches is for `kind: tree`, and this is block"),
        ({"kind": "none", "nodes_per_switch": 8}, "nodes_per_switch is for `kind: tree`"),
        ({"kind": "tree", "nodes_per_block": 18}, "nodes_per_block is for `kind: block`"),
        ({"kind": "tree", "segment": True}, "segment is for `kind: block`"),
        ({"kind": "tree", "switches_wait": "10:00"}, "switches_wait needs `switches: true` and"),
        ({"kind": "block", "shard_within": "block"}, "shard_within: block needs nodes_per_block"),
        ({"kind": "mesh"}, "'tree', 'block' or 'none'"),
        ({"kind": "tree", "rails": 0}, "rails"),
    ],
)
def test_what_does_not_go_together(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        topology(**keys)
    assert words in str(caught.value)


def test_what_a_site_may_say() -> None:
    tree = topology(kind="tree", nodes_per_switch=16, switches=True, switches_wait="10:00", rails=8)
    assert (tree.nodes_per_group, tree.switches_wait) == (16, 600)
    assert topology(kind="block", nodes_per_block=18, segment=True).nodes_per_group == 18
    assert topology(kind="block", switches=False).nodes_per_group is None


def test_rails_share_out_the_hcas_of_a_node() -> None:
    fabric = {"kind": "infiniband", "hcas_per_node": 8}
    assert site(fabric={**fabric, "topology": {"kind": "tree", "rails": 4}}).fabric.topology
    with pytest.raises(ValidationError, match=r"topology\.rails is 3 and hcas_per_node 8"):
        site(fabric={**fabric, "topology": {"kind": "tree", "rails": 3}})
