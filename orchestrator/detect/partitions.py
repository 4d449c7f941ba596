"""Partitions and their GPUs, as a profile gives them. Pure."""

from typing import Any

from orchestrator.detect import gpus, limits
from orchestrator.detect.choosing import Usable, unwritable
from orchestrator.detect.draft import Draft, Path
from orchestrator.detect.gpus import Gpus
from orchestrator.detect.preemption import CONFIG, Preemption
from orchestrator.detect.rights import Rights
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Partition


def put_gpus(draft: Draft, default: Usable, cluster: Cluster) -> None:
    """Add the GPUs, CPUs and memory of the default partition's nodes, which are the site's."""
    found = default.gpus
    if found is None:
        return
    where = f"{cluster.nodes_from}: Gres of the nodes of {default.partition.name}"
    for key, value in _gpu_data(found).items():
        low = key == "model" and found.guessed
        draft.put(("gpu", key), value, _of_gpu(key, where, cluster), "low" if low else None)
    _put_cpus(draft, (), default, cluster)
    if gpus.consumes_memory(cluster.config) and _memory_is_short(default.partition, cluster):
        why = f"{CONFIG}: SelectTypeParameters={cluster.config['SelectTypeParameters']}"
        draft.put(("memory",), "all", f"{why}, and a default amount that is less than a node has")


def _memory_is_short(partition: Partition, cluster: Cluster) -> bool:
    """Return whether a job gets less memory than it may have if it does not ask."""
    limited = any(key.startswith("DefMemPer") for key in cluster.config)
    most = any(key.startswith("MaxMemPer") for key in cluster.config) or partition.max_memory
    return (limited or partition.default_memory) and not most


def _of_gpu(key: str, where: str, cluster: Cluster) -> str:
    if key != "request":
        return where
    select = cluster.config.get("SelectType", "not shown, and --gres works everywhere")
    return f"{CONFIG}: SelectType={select}; typed where nodes of a partition differ"


def _gpu_data(found: Gpus) -> dict[str, Any]:
    data = {"model": found.model, "per_node": found.per_node, "request": found.request}
    return data | ({"type": found.type} if found.type else {})


def _put_cpus(draft: Draft, at: Path, one: Usable, cluster: Cluster) -> None:
    cpus = one.gpus.cpus if one.gpus else None
    where = f"{cluster.nodes_from}: CPUs that jobs can have"
    if one.partition.max_cpus and (cpus is None or one.partition.max_cpus < cpus):
        cpus, where = (
            one.partition.max_cpus,
            f"scontrol show partition {one.partition.name}: MaxCPUsPerNode",
        )
    draft.put((*at, "cpus_per_node"), cpus, where)


def put_partition(
    draft: Draft, one: Usable, default: Usable, cluster: Cluster, mine: Rights
) -> None:
    """Add a partition: its limits, its terms, and what differs from the default one."""
    partition, at = one.partition, ("partitions", one.partition.name)
    where = f"scontrol show partition {partition.name}"
    count = one.gpus.nodes if one.gpus else partition.node_count
    draft.put((*at, "nodes"), count or None, where)
    if one.gpus and default.gpus and _gpu_data(one.gpus) != _gpu_data(default.gpus):
        draft.put((*at, "gpu"), _gpu_data(one.gpus), f"{cluster.nodes_from}: Gres")
    if one is not default and one.gpus and default.gpus:
        _put_own_cpus(draft, at, one, default, cluster)
    if one.gpus and one.gpus.constraint:
        draft.put((*at, "constraint"), one.gpus.constraint, f"{cluster.nodes_from}: features")
    its_qos = next((qos for qos in cluster.qos if qos.name == partition.qos), None)
    limits.put_partition(draft, at, partition, its_qos)
    for key, (value, source) in (
        Preemption(cluster.config).of_partition(partition, cluster.partitions).items()
    ):
        draft.put((*at, key), value, source)
    draft.put((*at, "priority_tier"), partition.tier, where)
    draft.put((*at, "exclusive"), True if partition.exclusive else None, where)
    _put_qos_of(draft, at, partition)
    _put_own_qos(draft, at, partition, mine)
    if said := _remarks(one, mine):
        draft.put((*at, "note"), "; ".join(said), where)


def _put_own_cpus(draft: Draft, at: Path, one: Usable, default: Usable, cluster: Cluster) -> None:
    theirs, ours = Draft(), Draft()
    _put_cpus(theirs, (), default, cluster)
    _put_cpus(ours, (), one, cluster)
    if theirs.data() != ours.data():
        _put_cpus(draft, at, one, cluster)


def _put_qos_of(draft: Draft, at: Path, partition: Partition) -> None:
    """Add which QOS the partition takes; with AllowQos Slurm does not heed DenyQos."""
    where = f"scontrol show partition {partition.name}"
    if allowed := _writable(partition.allowed_qos or ()):
        draft.put((*at, "allow_qos"), allowed, f"{where}: AllowQos")
    elif denied := _writable(partition.denied_qos):
        draft.put((*at, "deny_qos"), denied, f"{where}: DenyQos")


def _writable(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not unwritable(name)]


def _put_own_qos(draft: Draft, at: Path, partition: Partition, mine: Rights) -> None:
    """Name a QOS where the default one is not allowed."""
    allowed = mine.qos_for(partition)
    if allowed and mine.default_qos and mine.default_qos not in allowed:
        where = f"scontrol show partition {partition.name}: AllowQos, DenyQos"
        draft.put((*at, "qos"), allowed[0], f"{where} are against {mine.default_qos}")


def _remarks(one: Usable, mine: Rights) -> list[str]:
    partition = one.partition
    said = [f"also nodes with {', '.join(one.gpus.others)}"] if one.gpus and one.gpus.others else []
    accounts = mine.accounts_for(partition)
    if accounts is not None and mine.accounts and len(accounts) < len(mine.accounts):
        said.append(f"of your accounts only for {', '.join(accounts)}")
    if partition.state != "UP":
        said.append(f"its state is {partition.state}")
    if partition.min_nodes and partition.min_nodes > 1:
        said.append(f"at least {partition.min_nodes} nodes")
    return said
