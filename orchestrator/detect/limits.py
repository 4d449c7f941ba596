"""The limits of partitions, QOS and accounts, as a profile gives them. Pure.

Of the limits of a partition and a QOS the smaller one holds, unless the QOS has the flag
PartitionTimeLimit.
"""

from collections.abc import Iterable, Sequence

from orchestrator.detect.draft import Draft, Path
from orchestrator.keys.fields import slurm_time
from orchestrator.slurm.accounting import Association, Qos
from orchestrator.slurm.inventory import Partition


def put_partition(draft: Draft, at: Path, partition: Partition, qos: Qos | None) -> None:
    """Add the limits of a partition, and of the QOS that it puts on all its jobs."""
    where = f"scontrol show partition {partition.name}"
    times = [(partition.max_time_s, where)]
    nodes = [(partition.max_nodes, where)]
    if qos is not None:
        its = f"sacctmgr show qos {qos.name}, the QOS of the partition"
        if qos.beyond_partition and qos.max_wall_s:
            times = []
        times.append((qos.max_wall_s, f"{its}: MaxWall"))
        nodes.append((qos.max_nodes, f"{its}: node"))
        if qos.max_gpus:
            draft.put((*at, "max_gpus_per_user"), qos.max_gpus, f"{its}: gres/gpu")
    _put_least(draft, (*at, "time_limit"), times, time=True)
    _put_least(draft, (*at, "max_nodes"), nodes)
    if partition.default_time_s:
        text = slurm_time(partition.default_time_s)
        draft.put((*at, "default_time_limit"), text, where)


def _put_least(
    draft: Draft, at: Path, found: Iterable[tuple[int | None, str]], *, time: bool = False
) -> None:
    known = [(value, where) for value, where in found if value]
    if known:
        value, where = min(known, key=lambda pair: pair[0] or 0)
        draft.put(at, slurm_time(value) if time else value, where)


def put_qos(draft: Draft, at: Path, qos: Qos) -> None:
    """Add the limits of a QOS that a job may name."""
    where = f"sacctmgr show qos {qos.name}"
    if qos.max_gpus:
        draft.put((*at, "max_gpus_per_user"), qos.max_gpus, where)
    if qos.max_nodes:
        draft.put((*at, "max_nodes"), qos.max_nodes, where)
    if qos.max_wall_s:
        draft.put((*at, "time_limit"), slurm_time(qos.max_wall_s), where)
        if qos.beyond_partition:
            draft.put((*at, "beyond_partition"), True, f"{where}: PartitionTimeLimit")


def put_quotas(draft: Draft, associations: Sequence[Association]) -> None:
    """Add what jobs of a user or an account may have together."""
    for key, own, what in (
        ("gpus_per_user", True, "your associations"),
        ("gpus_per_account", False, "your accounts"),
    ):
        rows = [one for one in associations if bool(one.user) == own]
        most = [one.group_gpus for one in rows]
        limits = [limit for limit in most if limit]
        # With one account that has no limit, a job may be had under that one.
        if limits and len(limits) == len(most):
            source = "sacctmgr show associations: GrpTRES gres/gpu"
            draft.put(("quotas",), [*_quotas(draft), {key: max(limits)}], source)
        elif limits:
            named = ", ".join(f"{one.account} {one.group_gpus}" for one in rows if one.group_gpus)
            draft.note(f"GPUs that {what} may have together: {named}; the others have no limit")
    for one in associations:
        if one.user and one.max_wall_s:
            text = slurm_time(one.max_wall_s)
            draft.note(f"the account {one.account} gives your jobs {text} at most")


def _quotas(draft: Draft) -> list[dict[str, int]]:
    return list(draft.data().get("quotas", []))
