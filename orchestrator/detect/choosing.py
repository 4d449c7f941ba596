"""Which partitions a profile is about, and where jobs go by default. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.detect import gpus
from orchestrator.detect.gpus import Gpus
from orchestrator.detect.rights import Rights, why_not
from orchestrator.errors import ProfileError
from orchestrator.keys.fields import sbatch_value
from orchestrator.slurm.cluster import Cluster
from orchestrator.slurm.inventory import Partition

_NO_LIMIT_S = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user asks for: a name, and the only partitions to look at."""

    name: str | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usable:
    """A partition that the user may use, and its GPUs."""

    partition: Partition
    gpus: Gpus | None


def usable(cluster: Cluster, mine: Rights, wish: Wish, left_out: list[str]) -> list[Usable]:
    """Return the partitions that the user may use; those with GPUs, if there are any.

    Args:
        cluster: What Slurm showed.
        mine: What the user may do.
        wish: The only partitions to look at.
        left_out: Gets the reason for each of the others.

    Raises:
        ProfileError: There is none, or not the one that was wished for.
    """
    found = []
    known = {one.name: one for one in cluster.partitions}
    for name in wish.partitions:
        if name not in known:
            raise ProfileError(
                f"--partition: Slurm shows no partition {name}; there are {', '.join(known)}"
            )
    for one in cluster.partitions:
        if wish.partitions and one.name not in wish.partitions:
            continue
        why = unwritable(one.name) or why_not(one, mine)
        if one.hidden and not wish.partitions:
            why = why or "it is hidden; name it with --partition if it is for you"
        if why:
            left_out.append(f"partition {one.name}: {why}")
        else:
            found.append(Usable(one, gpus.gpus_of(one.name, cluster.nodes, cluster.config)))
    if not found:
        said = "; ".join(left_out) or "Slurm shows none"
        raise ProfileError(f"there is no partition that {cluster.user} may use: {said}")
    with_gpus = [one for one in found if one.gpus]
    if with_gpus and not wish.partitions:
        left_out += [f"partition {u.partition.name}: it has no GPUs" for u in found if not u.gpus]
        return with_gpus
    return found


def unwritable(name: str) -> str:
    """Return why a profile cannot hold ``name``; empty if it can."""
    try:
        sbatch_value(name)
    except ValueError as problem:
        return f"its name {problem}"
    return ""


def default(usable: Sequence[Usable], wish: Wish) -> Usable:
    """Return where jobs go: as wished, else Slurm's own default, else what suits best."""
    if wish.partitions:
        return next(u for u in usable if u.partition.name in wish.partitions)
    open_now = [u for u in usable if u.partition.state == "UP"] or list(usable)
    several = [u for u in open_now if most_nodes(u) > 1] or open_now
    slurms = [u for u in several if u.partition.default]
    return slurms[0] if slurms else min(several, key=_preference)


def most_nodes(one: Usable) -> int:
    """Return how many nodes a job can have."""
    there = one.gpus.nodes if one.gpus else one.partition.node_count
    return min(there, one.partition.max_nodes or there)


def _preference(one: Usable) -> tuple[int, int, int]:
    rank = one.gpus.rank if one.gpus else 99
    return (rank, -most_nodes(one), -(one.partition.max_time_s or _NO_LIMIT_S))


def why_default(default: Usable, wish: Wish) -> str:
    """Return what speaks for the default partition."""
    where = f"scontrol show partition {default.partition.name}"
    if wish.partitions:
        return "--partition"
    if default.partition.default:
        return f"{where}: Default=YES"
    return f"{where}: the GPUs, nodes and time limit that suit best; Slurm's own default does not"
