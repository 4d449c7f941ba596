"""How the nodes of a site hang together, and what sbatch is told of it. Pure.

Two of Slurm's topology plugins matter here. `topology/tree` knows leaf switches and the switches
above them and heeds --switches. `topology/block` (23.11 and later) knows blocks of nodes, such as
those that share NVLink; it takes --switches and ignores it, and --segment (24.05) keeps so many
nodes in one block. Measured on 22.05, 24.11 and 26.05.
"""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from orchestrator.keys.counts import Count
from orchestrator.keys.fields import Strict, TimeLimit, time_limit_s

_SWITCHES = re.compile(r"(?P<count>[1-9]\d{0,5})(?:@(?P<wait>.*))?")
# What Slurm waits for at most unless the job or the site says otherwise (max_switch_wait).
MAX_SWITCH_WAIT_S = 300


def _switches(value: object) -> object:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    found = _SWITCHES.fullmatch(text)
    if found is None:
        raise ValueError(
            "is no number of switches; write it as sbatch does: 1, or 1@30:00 to wait for that at"
            " most half an hour"
        )
    if found["wait"] is not None:
        time_limit_s(found["wait"])
    return text


Switches = Annotated[str, BeforeValidator(_switches)]


def parse_switches(text: str) -> tuple[int, int | None]:
    """Return how many leaf switches ``text`` allows, and how many seconds to wait for that.

    >>> parse_switches("2@30:00"), parse_switches("1")
    ((2, 1800), (1, None))
    """
    count, at, wait = text.partition("@")
    return int(count), time_limit_s(wait) if at else None


class TopologyProfile(Strict):
    """How the nodes of a site hang together, as far as Slurm knows.

    Attributes:
        kind: The plugin: leaf switches, blocks, or none that would help.
        nodes_per_switch: Nodes on a leaf switch.
        switches: Whether --switches is heeded; None where nobody has said.
        switches_wait: How long a job that says nothing waits for the fewest switches that hold its
            nodes, in seconds. Without it such a job takes what comes first.
        nodes_per_block: Nodes in a block.
        segment: Whether sbatch takes --segment.
        shard_within: How far a shard group of `mesh: hsdp` reaches.
        rails: Networks that a node is on, each with one HCA or more of its own.
    """

    kind: Literal["tree", "block", "none"]
    nodes_per_switch: Count | None = None
    switches: bool | None = None
    switches_wait: TimeLimit | None = None
    nodes_per_block: Count | None = None
    segment: bool = False
    shard_within: Literal["node", "block"] = "node"
    rails: Count | None = None

    @model_validator(mode="after")
    def _of_this_kind(self) -> "TopologyProfile":
        tree = ("nodes_per_switch", "switches_wait") + (("switches",) if self.switches else ())
        block = ("nodes_per_block",) + (("segment",) if self.segment else ())
        for kind, names in (("tree", tree), ("block", block)):
            given = [name for name in names if getattr(self, name) is not None]
            if self.kind != kind and given:
                raise ValueError(f"{given[0]} is for `kind: {kind}`, and this is {self.kind}")
        return self

    @model_validator(mode="after")
    def _enough_is_known(self) -> "TopologyProfile":
        if self.switches_wait and not (self.switches and self.nodes_per_switch):
            raise ValueError(
                "switches_wait needs `switches: true` and nodes_per_switch, from which the fewest"
                " switches of a job are worked out"
            )
        if self.shard_within == "block" and self.nodes_per_block is None:
            raise ValueError("shard_within: block needs nodes_per_block")
        return self

    @property
    def nodes_per_group(self) -> int | None:
        """Nodes of a leaf switch or of a block."""
        return self.nodes_per_switch or self.nodes_per_block


def check_rails(topology: TopologyProfile | None, hcas_per_node: int | None) -> None:
    """Refuse rails that a node's HCAs cannot make.

    Raises:
        ValueError: They do not share out the HCAs evenly.
    """
    rails = topology.rails if topology else None
    if rails and hcas_per_node and hcas_per_node % rails:
        raise ValueError(
            f"topology.rails is {rails} and hcas_per_node {hcas_per_node}: each rail has the same"
            " number of a node's HCAs"
        )
