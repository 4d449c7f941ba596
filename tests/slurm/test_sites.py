"""What every shipped profile asks for, put to a real Slurm: `sbatch --test-only`.

Two hosts have all that some site has: its partitions with their limits, its QOS, its types of GPU
and its features. Slurm says whether the script of such a job reads, and whether the job could ever
start. Two things are not the site's own: the account, which here is alice's, and the nodes, which
are the same for all and have room for the largest request.

Not to be imitated are submit plugins (Vista's refusals, Torch's choice of a
partition by the comment), quotas of a user or a project, srun's plugins (pyxis, uenv), and what a
cloud does when a node boots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.keys.fields import slurm_time
from orchestrator.profile import PartitionProfile, SiteProfile
from tests.golden.cases import SLURM_SITES, Case, render, site_job, site_profile

from .cluster import Cluster, ClusterConfig, SlurmVersion
from .cluster.config import ComputeHost

PROFILES = {name: site_profile(name) for name in SLURM_SITES}
PREEMPTIBLE = [name for name, profile in PROFILES.items() if profile.preemptible]
FEATURES = ("h100", "h200", "a100", "gpu")
HOSTS = tuple(
    ComputeHost(
        name=name,
        gpus=8,
        more_gpus=("a100", "a100l"),
        features=FEATURES,
        cpus=512,
        memory_mb=3_000_000,
    )
    for name in ("n1", "n2")
)
# A job goes there that names no partition.
DEFAULT = "PartitionName=routed Default=YES MaxTime=INFINITE DefaultTime=60 Nodes=n1,n2"


def partition_line(name: str, known: list[PartitionProfile]) -> str:
    """A partition of slurm.conf; of sites that give theirs the same name the larger limits hold."""
    limits = [one.time_limit for one in known if one.time_limit]
    time = f" MaxTime={slurm_time(max(limits))}" if limits else ""
    nodes = [one.max_nodes for one in known]
    most = "" if None in nodes else f" MaxNodes={max(n for n in nodes if n)}"
    return f"PartitionName={name} Nodes=n1,n2{time}{most}"


def partition_lines() -> tuple[str, ...]:
    known: dict[str, list[PartitionProfile]] = {}
    for profile in PROFILES.values():
        for name, partition in profile.partitions.items():
            known.setdefault(name, []).append(partition)
    return (DEFAULT, *(partition_line(name, ones) for name, ones in sorted(known.items())))


def qos_names() -> set[str]:
    ways = [p.preemptible.qos for p in PROFILES.values() if p.preemptible and p.preemptible.qos]
    return {*(name for profile in PROFILES.values() for name in profile.qos), *ways} - {"normal"}


@pytest.fixture(scope="module")
def sites(real_slurm: SlurmVersion) -> Iterator[Cluster]:
    """A cluster with the partitions, the QOS and the GPUs of all sites."""
    config = ClusterConfig(
        version=real_slurm, hosts=HOSTS, strict=True, partitions=partition_lines()
    )
    with Cluster(config) as cluster:
        for qos in sorted(qos_names()):
            manage(cluster, "add", "qos", qos)
            manage(cluster, "modify", "user", "alice", "set", f"qos+={qos}")
        yield cluster


def manage(cluster: Cluster, *words: str) -> None:
    cluster.run(["sacctmgr", "--immediate", *words], user="root")


def script_of(profile: SiteProfile, **more: Any) -> str:
    job = site_job(profile, **more)
    return render("llama", Case(site=profile.name, job=job))["sbatch"]


def test_only(cluster: Cluster, script: str, *options: str) -> str:
    """What Slurm says of a script; alice's account stands in for one of the site."""
    argv = ["sbatch", "--test-only", "--account=research", *options]
    done = cluster.run(argv, input=script, check=False)
    return f"{done.returncode}: {done.stdout}{done.stderr}"


test_only.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SLURM_SITES)
def test_slurm_would_start_it(sites: Cluster, name: str) -> None:
    profile = PROFILES[name]
    said = test_only(sites, script_of(profile))
    assert said.startswith("0: "), said
    assert "to start at" in said
    assert f"in partition {profile.default_partition or 'routed'}" in said


@pytest.mark.parametrize("name", PREEMPTIBLE)
def test_slurm_would_start_it_where_it_is_cheap(sites: Cluster, name: str) -> None:
    way = PROFILES[name].preemptible
    assert way is not None
    said = test_only(sites, script_of(PROFILES[name], preemptible=True))
    assert said.startswith("0: "), said
    assert way.partition is None or f"in partition {way.partition}" in said


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mila-a100l", ["--gres=gpu:a100xl:4"]),
        ("kempner-h100", ["--time=3-00:00:00"]),
        ("kempner-h100", ["--partition=nowhere"]),
        ("ncsa-delta-a100x4", ["--partition=gpuH200x8"]),
        ("idris-jean-zay-h100", ["--constraint=v100-32g"]),
        ("nersc-perlmutter", ["--qos=nowhere"]),
        ("azure-nd-h100-v5", ["--gpus-per-node=25"]),
    ],
)
def test_slurm_says_no_to_what_the_cluster_lacks(
    sites: Cluster, name: str, options: list[str]
) -> None:
    """The answers above mean something: the same Slurm refuses what it does not have."""
    assert not test_only(sites, script_of(PROFILES[name]), *options).startswith("0: ")
