"""Ranks that follow the network: the batch shell's order of the nodes, and node.sh by it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import resources
from orchestrator.nodelist import expand

from .batch_shell import World, make

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
# Slurm's own words: 22.05 and 26.05 for the tree, 24.11 and 26.05 for the blocks.
TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1,3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2,4]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n5
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-5] Switches=s[0-2]
"""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n[1,3] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2,4] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""
SCONTROL = f"""#!{sys.executable}
import sys, os, pathlib
sys.path.insert(0, {str(ROOT)!r})
from orchestrator.nodelist import expand
what, text = sys.argv[2], sys.argv[-1]
if what == "topology":
    asked = pathlib.Path(os.environ["WORLD"], "asked")
    asked.write_text("x" + (asked.read_text() if asked.exists() else ""))
    sys.exit(os.system('. "$WORLD/topology.sh"') >> 8)
if what == "hostnames":
    print("\\n".join(expand(text)))
if what == "hostlist":
    print(text)
"""
RUN = """set -u
say() { printf '%s\\n' "$*" >>"$WORLD/said"; }
. "$WORLD/order.sh"
printf '%s|%s|%s\\n' "$nodes" "${FSDPQ_NODE_RANKS-none}" "$switches"
"""


class Order:
    """The fragment of the batch script, with what it asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        fragment = resources.root("templates") / "_2_node_order.sh.j2"
        (folder / "order.sh").write_text(fragment.read_text(encoding="utf-8"))
        self.command("scontrol", SCONTROL)

    def command(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def of(self, nodes: str, topology: str, *, script: str = "", count: int | None = None) -> str:
        """Return "nodes|node ranks|switches" for a job on ``nodes``."""
        (self.folder / "topology").write_text(topology)
        (self.folder / "topology.sh").write_text(script or 'cat "$WORLD/topology"')
        (self.folder / "said").write_text("")
        done = subprocess.run(
            ["bash", "-c", RUN],
            env={
                "PATH": f"{self.folder}:/usr/bin:/bin",
                "WORLD": str(self.folder),
                "SLURM_JOB_NODELIST": nodes,
                "SLURM_JOB_NUM_NODES": str(count or len(expand(nodes))),
                "FSDPQ_NODE_RANKS": "9 9 9",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout.strip()

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "topology", "expected"),
    [
        ("n[1-4]", TREE, 'n1,n3,n2,n4|0 2 1 3|"s0", "s1"'),
        ("n[1-5]", TREE, 'n1,n3,n2,n4,n5|0 2 1 3 4|"s0", "s1", "s2"'),
        ("n[2-3]", TREE, 'n2,n3|0 1|"s1", "s0"'),
        ("n[2,4]", TREE, 'n2,n4|0 1|"s1"'),
        ("n[1-4]", BLOCKS, 'n1,n3,n2,n4|0 2 1 3|"b0", "b1"'),
        # A node that Slurm knows no switch of stays about where it is.
        ("n[1-3],x1", TREE, 'n1,n3,n2,x1|0 2 1 3|"s0", "s1", ""'),
    ],
)
def test_nodes_of_one_switch_follow_one_another(
    order: Order, nodes: str, topology: str, expected: str
) -> None:
    assert order.of(nodes, topology) == expected


KEPT = "ranks do not follow the network, but Slurm's order: its topology could not be used\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", ""),  # 24.11 without a topology
        ("echo 'scontrol: error: No topology information available' >&2", ""),  # 22.05
        ("exit 1", KEPT),
        ("echo 'slurm_load_topo: Unable to contact slurm controller'; exit 1", KEPT),
        ('cat "$WORLD/topology"; exit 1', KEPT),
        ("echo; echo Nodes; echo =; echo 'SwitchName=s0 Level=0 Nodes='", ""),
        ("echo 'SwitchName=s9 Level=0 Nodes=x[1-9]'", ""),  # of other nodes
    ],
)
def test_without_a_topology_slurms_order_stays(order: Order, script: str, said: str) -> None:
    assert order.of("n[1-4]", TREE, script=script) == "n[1-4]|none|"
    assert order.said == said


def test_the_topology_of_a_very_large_cluster(order: Order) -> None:
    """It is longer than an argument may be (128 KiB), and so is the list of one switch in it."""
    names = [f"gpu-{n * 37 % 18013:05}" for n in range(16_000)]
    below = (",".join(names[8 * n : 8 * n + 8]) for n in range(2000))
    leaves = "".join(
        f"SwitchName=leaf{n:04} Level=0 LinkSpeed=1 Nodes=n{n},{hosts}\n"
        for n, hosts in enumerate(below)
    )
    top = f"SwitchName=top Level=1 LinkSpeed=1 Nodes={','.join(names)},n[0-1999]\n"
    assert min(len(leaves), len(top)) > 128 << 10
    host = names[8]
    assert order.of(f"n[1-2],{host}", leaves + top) == f'n1,{host},n2|0 2 1|"leaf0001", "leaf0002"'
    assert order.said == f"ranks follow the network: n1,{host},n2 on leaf0001, leaf0002\n"


def test_a_list_that_no_argument_can_hold_is_not_followed_in_part(order: Order) -> None:
    numbers = ",".join(map(str, range(100_001, 150_001, 2)))
    topology = TREE + f"SwitchName=huge Level=2 LinkSpeed=1 Nodes=n[1-5],n[{numbers}]\n"
    assert order.of("n[1-4]", topology) == "n[1-4]|none|"
    assert order.said == KEPT


def test_slurm_that_does_not_answer_is_waited_for_ten_seconds(order: Order) -> None:
    order.command("timeout", '#!/bin/bash\necho "$*" >"$WORLD/bound"\nexit 124\n')
    assert order.of("n[1-4]", TREE) == "n[1-4]|none|"
    assert (order.folder / "bound").read_text() == "-k 1 10 scontrol show topology\n"


def test_an_answer_about_another_number_of_nodes_is_not_used(order: Order) -> None:
    assert order.of("n[1-4]", TREE, count=5) == "n[1-4]|none|"
    assert order.said == KEPT


@pytest.mark.parametrize("awk", ["exit 1", "exit 127"])
def test_a_host_without_awk_keeps_slurms_order(order: Order, awk: str) -> None:
    order.command("awk", f"#!/bin/bash\n{awk}\n")
    assert order.of("n[1-4]", TREE) == "n[1-4]|none|"
    assert order.said == KEPT


def test_names_of_switches_cannot_break_the_record(order: Order) -> None:
    topology = 'SwitchName=a"b\\$(id) Level=0 Nodes=n[1-2]\n'
    assert order.of("n[1-2]", topology) == 'n1,n2|0 1|"a_b___id_"'


@pytest.mark.parametrize("seed", range(6))
def test_every_group_is_in_one_piece_at_every_level(order: Order, seed: int) -> None:
    dice = random.Random(seed)
    names = [f"n{i:03}" for i in range(60)]
    shuffled = dice.sample(names, len(names))
    leaves = [sorted(shuffled[i : i + 5]) for i in range(0, 60, 5)]
    spines = [sorted(leaves[i] + leaves[i + 1] + leaves[i + 2]) for i in range(0, 12, 3)]
    groups = [(0, leaf) for leaf in leaves] + [(1, spine) for spine in spines] + [(2, names)]
    lines = [
        f"SwitchName=g{i} Level={level} LinkSpeed=1 Nodes={','.join(nodes)}"
        for i, (level, nodes) in enumerate(groups)
    ]
    job = sorted(dice.sample(names, 23))
    nodes, ranks, _ = order.of(",".join(job), "\n".join(lines)).split("|")
    ordered = nodes.split(",")
    assert sorted(ordered) == job
    assert ordered[0] == job[0]
    assert [ordered[int(rank)] for rank in ranks.split()] == job
    for _, group in groups:
        places = [place for place, node in enumerate(ordered) if node in group]
        assert not places or places[-1] - places[0] == len(places) - 1


# --- the whole script, on four nodes ----------------------------------------------------------

SRUN = """#!/bin/bash
while [ "$1" != bash ]; do shift; done
for n in 0 1 2 3; do SLURM_NODEID=$n SLURMD_NODENAME=n$((n + 1)) "$@"; done
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make(tmp_path, "slurm", nodes=4)
    order = Order(tmp_path)
    order.command("srun", SRUN)
    (tmp_path / "topology").write_text(TREE)
    (tmp_path / "topology.sh").write_text('cat "$WORLD/topology"')
    line = '"$SLURMD_NODENAME $FSDPQ_NODE $FSDPQ_HEAD $TORCHELASTIC_ERROR_FILE $*"'
    world.python(f'echo {line} >>"$WORLD/started"')
    return world


def started(world: World) -> list[list[str]]:
    text = (world.path / "started").read_text()
    return [line.split() for line in text.splitlines()]


FOUR = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4"}


def test_each_node_takes_its_rank_from_the_one_order(world: World) -> None:
    assert world.go(**FOUR) == 0
    lines = started(world)
    assert [(words[0], words[1]) for words in lines] == [
        ("n1", "0"),
        ("n2", "2"),
        ("n3", "1"),
        ("n4", "3"),
    ]
    assert {words[2] for words in lines} == {"n1"}
    for words in lines:
        assert f"--node-rank={words[1]}" in words
        assert words[3].endswith(f"/errors/node-{words[1]}.json")
    assert (world.path / "asked").read_text() == "x"
    start = json.loads(world.run.attempt(1).start.read_text())
    assert (start["nodes"], start["switches"]) == ("n1,n3,n2,n4", ["s0", "s1"])


def test_without_an_answer_all_nodes_have_slurms_numbers(world: World) -> None:
    (world.path / "topology.sh").write_text("exit 1")
    assert world.go(**FOUR) == 0
    assert [words[:3] for words in started(world)] == [
        [f"n{n + 1}", str(n), "n1"] for n in range(4)
    ]
    start = json.loads(world.run.attempt(1).start.read_text())
    assert (start["nodes"], start["switches"]) == ("n[1-4]", [])


@pytest.mark.parametrize(
    "job",
    [{"nodes": 1}, {"nodes": 4, "at": {"fabric": {"kind": "none", "topology": {"kind": "none"}}}}],
)
def test_nobody_is_asked_where_there_is_nothing_to_order(
    tmp_path: Path, job: dict[str, object]
) -> None:
    world = make(tmp_path, "slurm", **job)  # type: ignore[arg-type]
    assert "topology" not in world.run.script.read_text()
    assert "FSDPQ_NODE_RANKS" not in world.run.node_script.read_text()
