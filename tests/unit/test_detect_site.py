"""From what Slurm showed to a profile."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.detect.login import Login, Mount
from orchestrator.errors import ProfileError
from orchestrator.slurm import inventory
from orchestrator.slurm.accounting import Association, Qos

from . import clusters
from .clusters import LOGIN, VERSIONS, detect, gpu_nodes, partition, profile, recorded, small

TRES = {"SelectType": "select/cons_tres", "GresTypes": "gpu"}
PRIO = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "JobRequeue": "1"}


# --- recorded clusters ------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_shows_the_same_cluster(version: str) -> None:
    found = profile(recorded(version))
    terms = {
        name: (one.preempt, one.grace_s, one.preempt_signal, one.exempt_s, one.priority_tier)
        for name, one in found.partitions.items()
    }
    assert terms == {
        "spot": ("requeue", 10, "user", 300, 1),
        "spotcancel": ("cancel", 10, "user", 300, 1),
        "nograce": ("requeue", 0, None, 300, 1),
        "prod": ("off", None, None, None, 100),
        "a100": ("requeue", 10, "user", 300, 1),
        "mixed": ("requeue", 0, None, 300, 50),
        "wall": ("requeue", 0, None, 300, 1),
    }
    assert found.default_partition == "spot"
    assert found.gpu is not None
    assert (found.gpu.model, found.gpu.type, found.gpu.per_node) == ("H100", "h100", 2)
    assert (found.gpu.request, found.memory) == ("gpus-per-node", "all")
    assert found.partitions["wall"].cpus_per_node == 4
    assert not found.account_required


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_of_several_types(version: str) -> None:
    """Its GPUs are asked for by type, and the limits of its QOS hold in it."""
    mixed = profile(recorded(version)).partitions["mixed"]
    assert mixed.gpu is not None
    assert (mixed.gpu.request, mixed.gpu.type) == ("gpus-per-node-typed", "h100")
    assert (mixed.nodes, mixed.max_nodes, mixed.max_gpus_per_user) == (2, 2, 4)
    assert (mixed.time_limit, mixed.exclusive) == (86400, True)
    assert "2 x A100 (1)" in str(mixed.note)
    assert "only for research" in str(mixed.note)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_for_this_user_is_left_out_with_a_word(version: str) -> None:
    assert detect(recorded(version)).left_out == ("partition closed: it is for the groups root",)
    everybody = dataclasses.replace(LOGIN, groups=("alice", "root"))
    left_out = detect(recorded(version), login=everybody).left_out
    assert left_out == (
        "partition closed: it is hidden; name it with --partition if it is for you",
    )
    assert set(profile(recorded(version), login=everybody, partitions=("closed",)).partitions) == {
        "closed"
    }


def test_sinfo_shows_the_same_nodes() -> None:
    rows = inventory.sinfo(clusters.text("22.05", "sinfo"))
    by_sinfo = profile(recorded(nodes=rows, nodes_from="sinfo"))
    assert by_sinfo.partitions == profile(recorded()).partitions
    assert by_sinfo.evidence_of("gpu.type").source == "sinfo: Gres of the nodes of spot"


def test_every_value_says_how_it_was_found() -> None:
    found = profile(recorded())
    told = {fact: found.evidence_of(fact).source for fact in found.facts()}
    assert told["partitions.spot.grace_s"] == "scontrol show partition spot"
    assert "send_user_signal" in told["partitions.spot.preempt_signal"]
    assert "jobs of prod, mixed, closed preempt it" in told["partitions.spot.preempt"]
    assert told["qos.high.time_limit"] == "sacctmgr show qos high"
    assert told["partitions.mixed.time_limit"].startswith("sacctmgr show qos partlimit")
    assert found.source[0] not in told.values()


# --- how GPUs are asked for -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "nodes", "request_", "kind"),
    [
        (TRES, (gpu_nodes(),), "gpus-per-node", "H100"),
        ({}, (gpu_nodes(),), "gres", "H100"),
        ({"SelectType": "select/cons_res"}, (gpu_nodes(),), "gres", "H100"),
        (TRES, (gpu_nodes(), gpu_nodes("a100")), "gpus-per-node-typed", "H100"),
        # Two nodes of what suits less go before one of what suits best.
        (TRES, (gpu_nodes(count=1), gpu_nodes("a100")), "gpus-per-node-typed", "A100"),
        (TRES, (gpu_nodes("v100", count=60), gpu_nodes("a100")), "gpus-per-node-typed", "A100"),
        # A job may not land on slices of GPUs.
        (TRES, (gpu_nodes(gpus=(("h100", 8), ("1g.10gb", 7))),), "gpus-per-node-typed", "H100"),
        (TRES, (gpu_nodes("", features=("ib", "gpu_h200")),), "gpus-per-node", "H200"),
        (TRES, (gpu_nodes("", features=("ib",)),), "gpus-per-node", "GPU"),
        (TRES, (gpu_nodes('x"$(id)'), gpu_nodes("a100")), "gpus-per-node", "A100"),
    ],
)
def test_requests(config: dict[str, str], nodes: Any, request_: str, kind: str) -> None:
    found = profile(small(partition(), nodes=nodes, **config))
    assert found.gpu is not None
    assert (found.gpu.request, found.gpu.model) == (request_, kind)


def test_features_tell_apart_what_types_do_not() -> None:
    """As on Kempner's requeue partition: untyped GPUs, features name the models."""
    nodes = (
        gpu_nodes("", 4, features=("h100", "ib")),
        gpu_nodes("", 4, count=9, features=("a100", "ib")),
    )
    found = profile(small(partition(), nodes=nodes))
    assert found.partitions["gpu"].constraint == "h100"
    assert found.gpu is not None
    assert found.gpu.model == "H100"


def test_the_fewest_cpus_of_the_nodes_count() -> None:
    nodes = (gpu_nodes(), gpu_nodes(cpus=64), gpu_nodes("", 0, cpus=8))
    assert profile(small(partition(), nodes=nodes)).cpus_per_node == 64


def test_memory_is_asked_for_where_jobs_get_a_part_of_it() -> None:
    part = {"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerCPU": "1000"}
    nodes = (gpu_nodes(),)
    assert profile(small(partition(), nodes=nodes, **part)).memory == "all"
    assert profile(small(partition(), nodes=nodes)).memory is None
    most = partition(max_memory=True)
    assert profile(small(most, nodes=nodes, **part)).memory is None


def test_a_cluster_without_gpus() -> None:
    found = profile(small(partition(), nodes=(gpu_nodes(each=0),)))
    assert (found.gpu, found.default_partition) == (None, "gpu")
    assert found.partitions["gpu"].nodes == 4


def test_partitions_without_gpus_are_left_out_beside_others() -> None:
    found = detect(small(partition(), partition("cpu", default=True), nodes=(gpu_nodes(),)))
    assert found.left_out == ("partition cpu: it has no GPUs",)
    assert found.data["default_partition"] == "gpu"


# --- the default partition --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitions", "wished", "name"),
    [
        ([partition("a"), partition("b", default=True)], (), "b"),
        ([partition("a", max_time_s=60), partition("b")], (), "b"),
        ([partition("a", max_nodes=1, default=True), partition("b")], (), "b"),
        ([partition("a", state="DRAIN", default=True), partition("b")], (), "b"),
        ([partition("a"), partition("b", default=True)], ("a",), "a"),
        ([partition("a", max_nodes=1)], (), "a"),
    ],
)
def test_where_jobs_go(partitions: Any, wished: tuple[str, ...], name: str) -> None:
    nodes = (gpu_nodes(partitions=("a", "b")),)
    found = profile(small(*partitions, nodes=nodes), partitions=wished)
    assert found.default_partition == name


def test_a_partition_that_is_not_there() -> None:
    with pytest.raises(ProfileError, match="no partition nope; there are gpu"):
        detect(small(partition()), partitions=("nope",))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "INACTIVE"}, "INACTIVE"),
        ({"root_only": True}, "for root"),
        ({"reservation_only": True}, "wants a reservation"),
        ({"groups": ("physics",)}, "for the groups physics"),
        ({"accounts": ("physics",)}, "does not take your accounts"),
        ({"denied_accounts": ("lab",)}, "does not take your accounts"),
        ({"allowed_qos": ("high",)}, "does not take your QOS"),
        ({"denied_qos": ("normal",)}, "does not take your QOS"),
        ({"name": "a$b"}, "write the plain value"),
    ],
)
def test_no_partition_for_this_user(changes: dict[str, Any], why: str) -> None:
    own = Association(account="lab", user="alice", qos=("normal",))
    cluster = small(dataclasses.replace(partition(), **changes))
    with pytest.raises(ProfileError, match="no partition that alice may use") as caught:
        detect(dataclasses.replace(cluster, associations=(own,)))
    assert why in str(caught.value)


# --- preemption -------------------------------------------------------------------------------


def test_only_what_is_above_on_the_same_nodes_preempts() -> None:
    low = partition("low", modes=("requeue",), grace_s=30)
    high = partition("high", modes=("requeue",), tier=9)
    other = partition("other", modes=("cancel",), nodes=frozenset({"x1"}))
    nodes = (gpu_nodes(partitions=("low", "high", "other")),)
    found = profile(small(low, high, other, nodes=nodes, **PRIO))
    assert {name: one.preempt for name, one in found.partitions.items()} == {
        "low": "requeue",
        "high": "off",
        "other": "off",
    }
    assert found.partitions["low"].preempt_signal == "TERM"


@pytest.mark.parametrize(
    ("config", "modes", "preempt", "requeue"),
    [
        (PRIO, ("gang", "suspend"), "suspend", True),
        (PRIO, (), "requeue", True),
        (PRIO | {"JobRequeue": "0"}, ("cancel",), "cancel", False),
        (PRIO | {"PreemptType": "preempt/none"}, ("requeue",), "off", None),
    ],
)
def test_modes(config: dict[str, str], modes: Any, preempt: str, requeue: bool | None) -> None:
    partitions = (partition(modes=modes), partition("top", tier=2))
    found = profile(small(*partitions, nodes=(gpu_nodes(),), **config)).partitions["gpu"]
    assert (found.preempt, found.requeue_default) == (preempt, requeue)


def test_a_cluster_that_does_not_show_its_settings() -> None:
    """Nothing is said of preemption then, and GPUs are asked for in the way that always works."""
    found = profile(recorded(config={}))
    assert not any("preempt" in fact for fact in found.facts())
    assert found.gpu is not None
    assert (found.name, found.gpu.request) == ("cluster", "gres")


def test_how_to_ask_for_what_is_cheap() -> None:
    partitions = (
        partition("gpu", default=True, tier=9),
        partition("kill", modes=("cancel",), grace_s=60),
        partition("spot", modes=("requeue",)),
    )
    nodes = (gpu_nodes(partitions=("gpu", "kill", "spot")),)
    cheap = profile(small(*partitions, nodes=nodes, **PRIO)).preemptible
    assert cheap is not None
    assert cheap.partition == "spot"


def test_preemption_by_qos() -> None:
    config = PRIO | {"PreemptType": "preempt/qos", "PreemptParameters": "send_user_signal"}
    qos = (
        Qos(name="normal", preempts=("scavenge",)),
        Qos(name="scavenge", mode="cancel", grace_s=120, exempt_s=1800),
    )
    own = Association(account="lab", user="alice", qos=("normal", "scavenge"))
    cluster = small(partition(modes=("requeue",)), nodes=(gpu_nodes(),), **config)
    found = profile(dataclasses.replace(cluster, qos=qos, associations=(own,)))
    scavenge = found.qos["scavenge"]
    assert (scavenge.preempt, scavenge.grace_s, scavenge.exempt_s) == ("cancel", 120, 1800)
    assert (scavenge.preempt_signal, found.partitions["gpu"].preempt) == ("user", "off")
    assert found.preemptible is not None
    assert (found.preemptible.qos, found.default_qos) == ("scavenge", None)


# --- limits, QOS and accounts -----------------------------------------------------------------


def with_qos(*qos: Qos, own: Association, **changes: Any) -> Any:
    cluster = small(partition(max_time_s=86400, **changes), nodes=(gpu_nodes(),))
    return dataclasses.replace(cluster, qos=qos, associations=(own,))


def test_the_limits_of_the_qos_that_one_may_name() -> None:
    own = Association(account="lab", user="alice", qos=("short", "long", "longer"))
    found = profile(
        with_qos(
            Qos(name="short", max_wall_s=3600, max_gpus=16),
            Qos(name="long", max_wall_s=7 * 86400),
            Qos(name="longer", max_wall_s=7 * 86400, beyond_partition=True),
            Qos(name="of others", max_wall_s=60),
            own=own,
        )
    )
    assert set(found.qos) == {"short", "long", "longer"}
    assert (found.qos["short"].time_limit, found.qos["short"].max_gpus_per_user) == (3600, 16)
    told = {name: (one.time_limit, one.beyond_partition) for name, one in found.qos.items()}
    assert told["long"] == (7 * 86400, False)  # the partition's day holds all the same
    assert told["longer"] == (7 * 86400, True)


def test_the_limits_of_the_default_qos_hold() -> None:
    own = Association(account="lab", user="alice", qos=("a", "b"), default_qos="b")
    found = profile(with_qos(Qos(name="b", max_gpus=16), own=own))
    assert (found.default_qos, found.qos["b"].max_gpus_per_user) == ("b", 16)


def test_a_partition_that_does_not_take_the_default_qos() -> None:
    own = Association(account="lab", user="alice", qos=("normal", "gpu"), default_qos="normal")
    found = profile(with_qos(own=own, allowed_qos=("gpu",)))
    assert found.partitions["gpu"].qos == "gpu"


@pytest.mark.parametrize(
    ("enforce", "default", "accounts", "required"),
    [
        ("associations,limits", "lab", None, False),
        ("associations", None, None, True),
        ("associations", "other", ("lab",), True),
        ("none", None, None, False),
    ],
)
def test_whether_a_job_has_to_name_an_account(
    enforce: str, default: str | None, accounts: Any, required: bool
) -> None:
    own = tuple(Association(account=name, user="alice") for name in ("lab", "other"))
    cluster = small(
        partition(accounts=accounts), nodes=(gpu_nodes(),), AccountingStorageEnforce=enforce
    )
    cluster = dataclasses.replace(cluster, associations=own, default_account=default)
    assert profile(cluster).account_required is required


def test_quotas_of_users_and_accounts() -> None:
    rows = (
        Association(account="lab", user="alice", group_gpus=16),
        Association(account="lab", group_gpus=64),
    )
    cluster = dataclasses.replace(small(partition(), nodes=(gpu_nodes(),)), associations=rows)
    users, accounts = profile(cluster).quotas
    assert (users.gpus_per_user, accounts.gpus_per_account) == (16, 64)


# --- the login node ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("srun", "login", "runtime"),
    [
        ("Usage\n      --container-image=IMG   pyxis\n", {}, "pyxis"),
        ("      --containerless", {"programs": ("apptainer",)}, "apptainer"),
        ("", {"plugins": "required /usr/lib/slurm/spank_pyxis.so\n"}, "pyxis"),
        ("", {"plugins": "# required spank_pyxis.so\n"}, None),
        ("      --environment=EDF\n", {"programs": ("podman-hpc",)}, "edf"),
        ("", {"programs": ("shifter", "singularity")}, "singularity"),
        ("      --container=PATH\n", {}, None),
    ],
)
def test_containers(srun: str, login: dict[str, Any], runtime: str | None) -> None:
    seen = Login(host="login1", **login)
    cluster = dataclasses.replace(small(partition(), nodes=(gpu_nodes(),)), srun_options=srun)
    container = profile(cluster, login=seen).container
    assert (container and container.runtime) == runtime


def test_limits_and_file_systems_of_the_login_node() -> None:
    mounts = (
        Mount(at="/", kind="xfs"),
        Mount(at="/home", kind="nfs4"),
        Mount(at="/s", kind="lustre"),
    )
    used = {"HOME": "/home/alice", "SCRATCH": "/s/alice", "WORK": "/opt/x"}
    seen = Login(host="login1", cpu_s=7200, memory_bytes=16 << 30, mounts=mounts, used=used)
    found = profile(small(partition(), nodes=(gpu_nodes(),), ScronParameters="enable"), login=seen)
    assert found.login is not None
    assert (found.login.watch, found.login.cpu_minutes, found.login.memory_gib) == (
        "scrontab",
        120,
        16,
    )
    assert {path: one.filesystem for path, one in found.storage.items()} == {
        "/home": "nfs4",
        "/s": "lustre",
    }


# --- QOS that a partition takes, and the topology -------------------------------------------------


def test_which_qos_a_partition_takes() -> None:
    found = profile(recorded())
    assert (found.partitions["wall"].allow_qos, found.partitions["wall"].deny_qos) == (
        ("high", "normal"),
        (),
    )
    assert found.partitions["spot"].allow_qos == ()
    cluster = small(partition(denied_qos=("slow", "a b$")), nodes=(gpu_nodes(),))
    only = profile(cluster).partitions["gpu"]
    assert (only.deny_qos, only.takes("slow"), only.takes("fast")) == (("slow",), False, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_plug_in_for_the_topology(version: str) -> None:
    found = profile(recorded(version)).fabric.topology
    assert found is not None
    assert found.kind == "none"


def test_a_topology_is_left_to_the_jobs() -> None:
    cluster = small(partition(), nodes=(gpu_nodes(),), TopologyPlugin="topology/tree")
    assert profile(cluster).fabric.topology is None
    assert profile(small(partition(), nodes=(gpu_nodes(),))).fabric.topology is None
