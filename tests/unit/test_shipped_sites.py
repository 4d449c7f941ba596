"""What every shipped profile has to be: whole, sourced, and free of settings that do harm."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.profile import GpuProfile, SiteProfile, load_profile, shipped

from .builders import plan, spec

SITES = [name for name in shipped() if name != "local"]
GENERIC = [name for name in SITES if name.startswith("generic-")]
ELSEWHERE = Path("/nowhere")
# Ten partitions and more have a GPU or a node in common; these say how a job asks for one.
PREEMPTIBLE = {
    "kempner-h100": ("partition", "kempner_requeue"),
    "kempner-h200": ("partition", "kempner_requeue"),
    "kempner-a100": ("partition", "kempner_requeue"),
    "mila-a100": ("partition", "long"),
    "mila-a100l": ("partition", "long"),
    "ncsa-delta-a100x4": ("partition", "gpuA100x4-preempt"),
    "nersc-perlmutter": ("qos", "preempt"),
    "nyu-torch-a100": ("comment", "preemption=yes;requeue=true"),
    "nyu-torch-h100": ("comment", "preemption=yes;requeue=true"),
    "nyu-torch-h200": ("comment", "preemption=yes;requeue=true"),
}


def load(name: str) -> SiteProfile:
    return load_profile(name, base=ELSEWHERE)


def variables(profile: SiteProfile) -> dict[str, str]:
    """All that a profile sets, whichever way a job starts; of two values the last one."""
    ours = (profile.env, profile.env_host, profile.env_container, profile.env_multi_node)
    found = {name: value for part in ours for name, value in part.items()}
    return found | (profile.container.env if profile.container else {})


def planned(name: str, **job: Any) -> LaunchPlan:
    return plan(spec(**{"account": "lab", **job}), load(name))


def refused(name: str, **job: Any) -> str:
    with pytest.raises(SpecError) as caught:
        planned(name, **job)
    return str(caught.value)


@pytest.mark.parametrize("name", SITES)
def test_each_fact_has_a_source_that_is_listed(name: str) -> None:
    profile = load(name)
    for fact in profile.facts():
        keys = [key for key in profile.evidence if fact == key or fact.startswith(f"{key}.")]
        assert keys, f"nothing says where {fact} is from"
        assert profile.evidence_of(fact).source in profile.source


@pytest.mark.parametrize("name", SITES)
def test_it_says_when_it_was_checked_and_how_far_to_trust_it(name: str) -> None:
    profile = load(name)
    assert date.fromisoformat(profile.checked)
    assert profile.confidence in ("high", "medium")
    assert len(set(profile.source)) == len(profile.source)


@pytest.mark.parametrize("name", SITES)
def test_a_source_says_which_state_of_it_was_read(name: str) -> None:
    """A page has an address; a repository's file its path, and mostly commit and day."""
    for source in load(name).source:
        page = source.startswith(("https://", "http://", "public job scripts"))
        assert page or re.match(r"[\w.-]+/[\w.-]+( [0-9a-f]{8})?( \([\w.-]+\))?, \S+", source)


@pytest.mark.parametrize("name", SITES)
def test_what_people_tell_each_other_has_low_confidence(name: str) -> None:
    profile = load(name)
    for fact in profile.facts():
        found = profile.evidence_of(fact)
        if found.source.startswith("public job scripts"):
            assert found.confidence == "low", fact


@pytest.mark.parametrize("name", [name for name in SITES if name not in GENERIC])
def test_it_says_what_a_job_needs(name: str) -> None:
    profile = load(name)
    assert profile.gpu is not None
    # Whole nodes come with their CPUs, and a total of GPUs with what belongs to them.
    whole = "exclusive" in profile.options or profile.gpu.request in ("none", "forbidden", "gpus")
    assert profile.cpus_per_node or whole
    assert planned(name).nproc_per_node == profile.gpu.per_node


@pytest.mark.parametrize("name", GENERIC)
def test_a_generic_one_is_there_to_be_extended(name: str) -> None:
    profile = load(name)
    assert profile.fabric.kind == name.removeprefix("generic-")
    assert (profile.gpu, profile.partitions, profile.cpus_per_node) == (None, {}, None)
    extended = profile.model_copy(update={"gpu": GpuProfile(model="H100", per_node=8)})
    assert dict(plan(spec(nodes=2), extended).directives)["gpus-per-node"] == "8"


# A value is the site's own, and its profile says why; nobody else sets the variable.
ONLY = {
    "NCCL_IB_GID_INDEX": {n for n in SITES if n.startswith("oci-")},
    "NCCL_CUMEM_ENABLE": {"oci-bm-gpu-h100", "oci-bm-gpu-h200"},
    "NCCL_IB_SPLIT_DATA_ON_QPS": {"oci-bm-gpu-h100", "oci-bm-gpu-h200"},
    "NCCL_ALGO": {"gcp-a3-highgpu"},
    "NCCL_PROTO": {"gcp-a3-highgpu", "cscs-clariden", "cscs-daint", "cscs-bristen"},
}
NEVER = [
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_DMABUF_ENABLE",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_RETRY_CNT",
    "NCCL_DEBUG",
    "NCCL_TIMEOUT",
    "NCCL_MIN_CHANNELS",
    "NCCL_MAX_CHANNELS",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "FI_EFA_USE_DEVICE_RDMA",
    "RDMAV_FORK_SAFE",
]


@pytest.mark.parametrize("name", SITES)
def test_nothing_is_forced_that_modern_versions_decide_better(name: str) -> None:
    env = variables(load(name))
    assert not set(NEVER) & env.keys()
    for variable, sites in ONLY.items():
        assert variable not in env or name in sites
    assert not env.get("NCCL_NET_GDR_LEVEL", "PHB").isdigit()
    assert 1 <= int(env.get("NCCL_IB_TIMEOUT", 20)) <= 31
    # Without "=" mlx5_1 is the beginning of mlx5_10 too; CoreWeave's beginning is meant.
    assert env.get("NCCL_IB_HCA", "=").startswith("=") or env["NCCL_IB_HCA"] == "ibp"


@pytest.mark.parametrize("name", [name for name in SITES if load(name).fabric.kind == "infiniband"])
def test_no_gid_index_on_infiniband(name: str) -> None:
    assert "NCCL_IB_GID_INDEX" not in variables(load(name))


@pytest.mark.parametrize("name", SITES)
def test_a_list_of_hcas_is_as_long_as_the_site_says(name: str) -> None:
    profile = load(name)
    listed = variables(profile).get("NCCL_IB_HCA", "")
    assert not listed.startswith("=") or profile.fabric.hcas_per_node == len(listed.split(","))


def test_which_sites_say_how_what_is_cheap_is_asked_for() -> None:
    assert {name for name in SITES if load(name).preemptible} == set(PREEMPTIBLE)


@pytest.mark.parametrize("name", PREEMPTIBLE)
def test_how_what_is_cheap_is_asked_for(name: str) -> None:
    option, value = PREEMPTIBLE[name]
    assert dict(planned(name, preemptible=True).directives)[option] == value


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kempner-h100", {"gres": "gpu:4", "mem": "1440G", "partition": "kempner_h100"}),
        ("kempner-a100", {"gres": "gpu:4", "mem": "960G", "time": "2-00:00:00"}),
        ("mila-a100l", {"gres": "gpu:a100l:4", "mem": "992G", "partition": "long"}),
        ("ncsa-delta-a100x4", {"gpus-per-node": "4", "mem": "0", "exclusive": ""}),
        ("alliance-rorqual", {"gpus-per-node": "h100:4", "mem": "496G", "time": "7-00:00:00"}),
        ("idris-jean-zay-h100", {"gres": "gpu:4", "constraint": "h100", "hint": "nomultithread"}),
        ("nersc-perlmutter", {"constraint": "gpu", "qos": "regular", "cpus-per-task": "128"}),
        ("isambard-ai", {"gpus": "8", "partition": "workq"}),
    ],
)
def test_how_gpus_are_asked_for(name: str, options: dict[str, str]) -> None:
    given = dict(planned(name, nodes=2).directives)
    assert {key: given.get(key) for key in options} == options


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("tacc-vista", {"gres", "gpus", "gpus-per-node", "mem", "export", "nodelist"}),
        ("cscs-clariden", {"gres", "gpus", "gpus-per-node"}),
        ("nyu-torch-h200", {"partition", "gpus-per-node"}),
        ("alliance-rorqual", {"partition", "gres"}),
        ("aws-hyperpod-p5", {"gres", "gpus-per-node"}),
    ],
)
def test_what_a_site_does_not_want(name: str, left_out: set[str]) -> None:
    assert not left_out & dict(planned(name, nodes=2).directives).keys()


@pytest.mark.parametrize(
    ("name", "job", "words"),
    [
        ("kempner-h100", {"nodes": 5}, "20 GPUs, which is more than kempner-h100 gives a user"),
        ("kempner-h100", {"account": None}, "of the form kempner_<lab>_lab"),
        ("ncsa-delta-a100x4", {"partition": "gpuH200x8", "nodes": 2}, "gpuH200x8 allows (1)"),
        ("tacc-vista", {"nodes": 65}, "more than the partition gh allows (64)"),
        ("tacc-vista", {"mem_gib": 100}, "tacc-vista forbids --mem"),
        ("tacc-vista", {"sbatch": {"nodelist": "c1"}}, "jobs that name nodes are deleted"),
        ("nyu-torch-h200", {"partition": "h200_public"}, "not to name partitions"),
        ("nyu-torch-h200", {"nodes": 4}, "gives a user for time limits below 2-00:00:00 (24)"),
        ("isambard-ai", {"nodes": 9}, "gives an account (32)"),
        ("mila-h100", {"nodes": 2}, "short-unkillable gives a user (4)"),
        ("mila-a100l", {"partition": "main"}, "main gives a user (2)"),
        ("alliance-rorqual", {"time_limit": "30"}, "00:30:00 is less than"),
        ("cscs-clariden", {"time_limit": "24:00:00"}, "more than the partition normal"),
        ("cscs-daint", {"partition": "debug", "nodes": 3}, "debug allows (2)"),
    ],
)
def test_what_a_site_would_never_start(name: str, job: dict[str, Any], words: str) -> None:
    assert words in refused(name, **job)


def test_a_partition_of_other_hardware_is_not_inherited() -> None:
    assert set(load("kempner-a100").partitions) == {"kempner", "kempner_requeue"}
    assert set(load("cscs-bristen").partitions) == {"normal"}
    assert load("cscs-bristen").cpus_per_node is None
    assert set(load("mila-h100").partitions) == {"short-unkillable"}


def test_plugins_of_a_cloud_are_set_up() -> None:
    high, mega = planned("gcp-a3-highgpu", nodes=2), planned("gcp-a3-megagpu", nodes=2)
    assert dict(high.multi_node_env)["NCCL_NET"] == "GPUDirectTCPX_v7"
    assert "NCCL_NET" not in dict(high.env)
    assert dict(high.prepend) == {"LD_LIBRARY_PATH": "/var/lib/tcpx/lib64"}
    assert [path for path, _ in mega.scripts] == ["/var/lib/tcpxo/lib64/nccl-env-profile.sh"]
    clouds = {name: load(name).cloud for name in SITES if load(name).cloud != "none"}
    assert set(clouds.values()) == {"aws", "azure", "gcp"}
    assert all(name.startswith((cloud, f"generic-{_of(cloud)}")) for name, cloud in clouds.items())


def _of(cloud: str) -> str:
    return {"aws": "efa"}.get(cloud, cloud)
