"""What a job asks of the network's topology, and how its mesh lies on it. Pure."""

from collections.abc import Iterator
from math import ceil

from orchestrator.errors import SpecError
from orchestrator.keys.fields import slurm_time
from orchestrator.keys.topology import MAX_SWITCH_WAIT_S, TopologyProfile, parse_switches
from orchestrator.nodelist import expand
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec
from orchestrator.spec.train import mesh_shape

_UNKNOWN = TopologyProfile(kind="none")


def orders_nodes(spec: JobSpec, profile: SiteProfile) -> bool:
    """Return whether ranks follow the network; asked of Slurm where the profile is silent."""
    topology = profile.fabric.topology
    several = profile.scheduler == "slurm" and spec.nodes > 1
    return several and (topology is None or topology.kind != "none")


def with_mesh(spec: JobSpec, profile: SiteProfile, *, nproc: int) -> JobSpec:
    """Return ``spec`` with the size of the shard groups settled where the job leaves it open.

    They lie within a node, or within a block where the profile says so: as many of its nodes as
    the job's nodes can be divided by.
    """
    if spec.train is None or spec.train.mesh.replicate != "auto" or spec.train.mesh.shard:
        return spec
    topology = profile.fabric.topology or _UNKNOWN
    most = topology.nodes_per_block or 1 if topology.shard_within == "block" else 1
    nodes = max(n for n in range(1, min(most, spec.nodes) + 1) if spec.nodes % n == 0)
    mesh = spec.train.mesh.model_copy(update={"shard": nodes * nproc})
    train = spec.train.model_copy(update={"mesh": mesh})
    return spec.model_copy(update={"train": train})


def switches(spec: JobSpec, profile: SiteProfile) -> str | None:
    """Return the value of --switches, None for none.

    Raises:
        SpecError: The site does not heed it, or so few switches do not hold the nodes.
    """
    topology = profile.fabric.topology
    if spec.switches is None:
        return None if topology is None else fewest(topology, spec.nodes)
    if topology is None:
        return spec.switches
    if topology.kind != "tree" or topology.switches is False:
        raise SpecError(
            f"switches: the Slurm of {profile.name} does not heed --switches (fabric.topology of"
            " its profile); leave it out"
        )
    least = _groups(topology, spec.nodes)
    if least and parse_switches(spec.switches)[0] < least:
        raise SpecError(
            f"switches: {spec.nodes} nodes do not fit on {spec.switches.partition('@')[0]} of"
            f" {topology.nodes_per_switch} nodes each; the job would wait for nothing. Use"
            f" switches: {least} or more, or fewer nodes"
        )
    return spec.switches


def fewest(topology: TopologyProfile, nodes: int) -> str | None:
    """Return --switches for the fewest that hold ``nodes``; None where the profile asks for none.

    >>> site = {"switches": True, "nodes_per_switch": 16, "switches_wait": "10:00"}
    >>> fewest(TopologyProfile(kind="tree", **site), 33)
    '3@00:10:00'
    """
    if topology.switches_wait is None or nodes < 2:
        return None
    return f"{_groups(topology, nodes)}@{slurm_time(topology.switches_wait)}"


def by_size(
    spec: JobSpec, profile: SiteProfile, sizes: tuple[int, ...]
) -> tuple[tuple[int, str], ...]:
    """Return (nodes, --switches) for each of ``sizes`` where the profile settles the option."""
    topology = profile.fabric.topology
    if topology is None or spec.switches is not None:
        return ()
    found = ((size, fewest(topology, size)) for size in sizes)
    return tuple((size, value) for size, value in found if value is not None)


def _groups(topology: TopologyProfile, nodes: int) -> int | None:
    size = topology.nodes_per_group
    return ceil(nodes / size) if size else None


def segment(spec: JobSpec, profile: SiteProfile, *, nproc: int) -> str | None:
    """Return --segment: how many nodes Slurm has to keep in one block, those of a shard group.

    Raises:
        SpecError: The mesh does not have as many ranks as the job.
    """
    topology = profile.fabric.topology
    if topology is None or not topology.segment or spec.train is None:
        return None
    replicate, shard = mesh_shape(spec.train, spec.nodes * nproc)
    span, rest = divmod(shard, nproc)
    fits = rest == 0 and 1 < span <= (topology.nodes_per_block or span)
    return str(span) if fits and replicate > 1 else None


def notes(spec: JobSpec, profile: SiteProfile, *, nproc: int) -> Iterator[str]:
    """Yield what looks like a mistake: shard groups that cross nodes, waits that outlast others."""
    topology = profile.fabric.topology or _UNKNOWN
    if spec.train is not None:
        replicate, shard = mesh_shape(spec.train, spec.nodes * nproc)
        if replicate > 1:
            yield from _mesh_notes(shard, nproc, topology)
    if spec.elastic is not None and (asked := switches(spec, profile)):
        wait = parse_switches(asked)[1] or MAX_SWITCH_WAIT_S
        if wait >= spec.elastic.patience_s:
            yield (
                f"elastic.patience_s: {spec.elastic.patience_s:g} s are over before Slurm stops to"
                f" wait for the switches ({wait} s), so the job would go on with fewer nodes first"
            )


def _mesh_notes(shard: int, nproc: int, topology: TopologyProfile) -> Iterator[str]:
    """Yield how shard groups of ``shard`` ranks cross the borders of nodes and blocks."""
    small, large = sorted((shard, nproc))
    if large % small:
        yield (
            f"train.mesh: shard groups of {shard} ranks cross nodes of {nproc} GPUs; each step's"
            f" all-gathers would leave NVLink. Use `mesh: hsdp`, or a shard that is a divisor or"
            f" a multiple of {nproc}"
        )
        return
    span, size = shard // nproc, topology.nodes_per_group
    word = "block" if topology.kind == "block" else "leaf switch"
    if size and span > 1 and size % span:
        yield (
            f"train.mesh: a shard group spans {span} nodes, and a {word} of this site has {size}:"
            f" some groups cross it. Use a shard of 1 node, or of a number of nodes that"
            f" divides {size}"
        )


def spread(nodes: str, names: tuple[str, ...], *, per_group: int | None) -> str | None:
    """Return in words that an allocation is spread over more switches or blocks than it has to be.

    >>> spread("n[1,3,2]", ("s0", "s1"), per_group=4)
    'runs over 2 switches or blocks (s0, s1), and 1 would hold its nodes'
    """
    count = len(expand(nodes))
    if not per_group or len(names) <= ceil(count / per_group):
        return None
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return (
        f"runs over {len(names)} switches or blocks ({shown}), and"
        f" {ceil(count / per_group)} would hold its nodes"
    )
