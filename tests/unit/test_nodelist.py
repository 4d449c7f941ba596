"""Slurm's node lists, and whose node a host name is."""

from __future__ import annotations

import pytest

from orchestrator.nodelist import expand, node_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("alpha,beta", ("alpha", "beta")),
        ("linux[1,2]", ("linux1", "linux2")),
        ("n[1-3,07]", ("n1", "n2", "n3", "n07")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        (
            "rack[1-2]node[01-03]",
            (*(f"rack1node0{i}" for i in (1, 2, 3)), *(f"rack2node0{i}" for i in (1, 2, 3))),
        ),
        ("gpu-a[1-2]-ib,login", ("gpu-a1-ib", "gpu-a2-ib", "login")),
        ("", ()),
        ("None assigned", ("None assigned",)),
        ("n[1-2", ()),
        ("n]1[", ()),
        ("n[a-b]", ()),
        ("n[5-1]", ()),
        ("n[0-999999999]", ()),
        ("a[0-99999]b[0-99999]", ()),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("host", "nodes", "index", "node"),
    [
        ("n2", ("n1", "n2"), None, "n2"),
        ("n2.cluster.local", ("n1", "n2"), None, "n2"),
        ("N2", ("n1", "n2"), None, "n2"),
        ("n2", ("n1.hpc", "n2.hpc"), None, "n2.hpc"),
        ("localhost", ("n1",), None, "n1"),
        ("localhost", ("n1", "n2"), None, ""),
        ("ip-10-0-0-7", ("gpu-1", "gpu-2"), 1, "gpu-2"),
        ("ip-10-0-0-7", ("gpu-1", "gpu-2"), 9, ""),
        ("n2", (), 0, ""),
        ("", ("n1", "n2"), None, ""),
        # Of two clusters: neither is a guess.
        ("n1", ("n1.a", "n1.b"), None, ""),
    ],
)
def test_node_of(host: str, nodes: tuple[str, ...], index: int | None, node: str) -> None:
    assert node_of(host, nodes, index=index) == node


def test_very_many_brackets_in_a_name_are_no_name() -> None:
    assert expand("n[1]" * 5000 + ",m[1-2]") == ("m1", "m2")
