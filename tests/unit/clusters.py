"""Clusters as real Slurms showed them to alice (tests/data/slurm-*/site), and changed ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from orchestrator.detect.choosing import Wish
from orchestrator.detect.login import Login
from orchestrator.detect.node import Node
from orchestrator.detect.site import Detected, detected
from orchestrator.errors import ProfileError
from orchestrator.keys.fields import validate
from orchestrator.profile import SiteProfile
from orchestrator.slurm import accounting, inventory, words
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Nodes, Partition

DATA = Path(__file__).parents[1] / "data"
VERSIONS = ("22.05", "24.11", "26.05")
LOGIN = Login(host="login1", groups=("alice",))


def text(version: str, name: str) -> str:
    """Return what one command printed."""
    return (DATA / f"slurm-{version}" / "site" / f"{name}.txt").read_text()


def recorded(version: str = "22.05", **changes: Any) -> Cluster:
    """Return the cluster that was recorded, with attributes replaced."""
    config = words.table(text(version, "config"))
    rows = text(version, "assoc") + text(version, "accounts")
    found = Cluster(
        user="alice",
        partitions=inventory.partitions(text(version, "partition")),
        config=config,
        nodes=inventory.nodes(text(version, "node")),
        associations=accounting.associations(rows, cluster=config["ClusterName"]),
        default_account=accounting.default_account(text(version, "user")),
        qos=accounting.all_qos(text(version, "qos")),
    )
    return dataclasses.replace(found, **changes)


def small(*partitions: Partition, nodes: tuple[Nodes, ...] = (), **config: str) -> Cluster:
    """Return a cluster of these partitions and nodes, with settings in ``config``."""
    return Cluster(user="alice", partitions=partitions, nodes=nodes, config=config)


def partition(name: str = "gpu", **changes: Any) -> Partition:
    """Return a partition of four nodes."""
    names = frozenset(f"n{i}" for i in range(1, 5))
    return Partition(name=name, **{"nodes": names, "node_count": 4, **changes})


def gpu_nodes(kind: str = "h100", each: int = 8, count: int = 4, **changes: Any) -> Nodes:
    """Return nodes with GPUs of the partition `gpu`."""
    gpus = ((kind, each),) if each else ()
    return Nodes(**{"partitions": ("gpu",), "count": count, "gpus": gpus, "cpus": 96, **changes})


def detect(cluster: Cluster, node: Node | None = None, **given: Any) -> Detected:
    """Return what is found out of it."""
    login = given.pop("login", LOGIN)
    names = given.pop("names", ())
    return detected(cluster, login, node, wish=Wish(**given), today="2026-11-29", names=names)


def profile(cluster: Cluster, node: Node | None = None, **given: Any) -> SiteProfile:
    """Return the profile that is made of it."""
    found = detect(cluster, node, **given)
    return validate(SiteProfile, found.data, where=Path("x.yaml"), error=ProfileError)
