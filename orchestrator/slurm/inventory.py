"""What Slurm shows of a cluster: partitions and nodes as values. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator import nodelist
from orchestrator.slurm import words

# States of nodes that come back by themselves or with their admin are no reason to leave a node
# out of a profile; these are not meant for jobs.
_NO_NODE = ("FUTURE", "INVALID", "PERFCTRS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition; None is no limit, and for names everybody.

    Attributes:
        modes: Its PreemptMode, such as ("gang", "suspend").
        state: UP; DOWN takes jobs and starts none, DRAIN takes none, INACTIVE neither.
        default_memory: Whether it says how much memory a job gets that asks for none.
        max_memory: Whether it says how much a job may have.
    """

    name: str
    state: str = "UP"
    default: bool = False
    hidden: bool = False
    root_only: bool = False
    reservation_only: bool = False
    nodes: frozenset[str] = frozenset()
    node_count: int = 0
    max_time_s: int | None = None
    default_time_s: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    max_cpus: int | None = None
    qos: str | None = None
    tier: int = 1
    modes: tuple[str, ...] = ()
    grace_s: int = 0
    accounts: tuple[str, ...] | None = None
    denied_accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    allowed_qos: tuple[str, ...] | None = None
    denied_qos: tuple[str, ...] = ()
    exclusive: bool = False
    default_memory: bool = False
    max_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes that are alike: one of `scontrol show node`, or a row of sinfo.

    Attributes:
        gpus: How many of each type; "" is one without a type.
        cpus: What jobs can have: hardware threads without those that are kept back.
    """

    partitions: tuple[str, ...]
    count: int = 1
    gpus: tuple[tuple[str, int], ...] = ()
    cpus: int | None = None
    memory_mb: int | None = None
    features: tuple[str, ...] = ()


def partitions(text: str) -> tuple[Partition, ...]:
    """Return the partitions in the text of `scontrol --oneliner show partition`."""
    records = (words.record(line) for line in text.splitlines())
    return tuple(_partition(one) for one in records if one.get("PartitionName"))


def _partition(said: Mapping[str, str]) -> Partition:
    names = nodelist.expand(said.get("Nodes", ""))
    return Partition(
        name=said["PartitionName"],
        state=said.get("State", "UP"),
        default=said.get("Default") == "YES",
        hidden=said.get("Hidden") == "YES",
        root_only=said.get("RootOnly") == "YES",
        reservation_only=said.get("ReqResv") == "YES",
        nodes=frozenset(names),
        node_count=words.number(said.get("TotalNodes")) or len(names),
        max_time_s=words.seconds(said.get("MaxTime")),
        default_time_s=words.seconds(said.get("DefaultTime")),
        min_nodes=words.number(said.get("MinNodes")),
        max_nodes=words.number(said.get("MaxNodes")),
        max_cpus=words.number(said.get("MaxCPUsPerNode")),
        qos=words.value(said.get("QoS")),
        tier=words.number(said.get("PriorityTier")) or 0,
        modes=words.setting(said, "PreemptMode"),
        grace_s=words.seconds(said.get("GraceTime")) or 0,
        accounts=words.names(said.get("AllowAccounts")),
        denied_accounts=words.names(said.get("DenyAccounts")) or (),
        groups=words.names(said.get("AllowGroups")),
        allowed_qos=words.names(said.get("AllowQos")),
        denied_qos=words.names(said.get("DenyQos")) or (),
        exclusive=_is_exclusive(said),
        default_memory=_says(said, "DefMemPer"),
        max_memory=_says(said, "MaxMemPer"),
    )


def _is_exclusive(said: Mapping[str, str]) -> bool:
    # OverSubscribe=EXCLUSIVE up to 25.x; 26.05 shows Exclusive=NODE (measured).
    return said.get("OverSubscribe") == "EXCLUSIVE" or said.get("Exclusive") == "NODE"


def _says(said: Mapping[str, str], beginning: str) -> bool:
    return any(
        key.startswith(beginning) and words.number(text) is not None for key, text in said.items()
    )


def nodes(text: str) -> tuple[Nodes, ...]:
    """Return the nodes in the text of `scontrol --oneliner show node`."""
    records = (words.record(line) for line in text.splitlines())
    return tuple(_node(one) for one in records if one.get("NodeName") and _is_for_jobs(one))


def _is_for_jobs(said: Mapping[str, str]) -> bool:
    return not any(word in said.get("State", "") for word in _NO_NODE)


def _node(said: Mapping[str, str]) -> Nodes:
    return Nodes(
        partitions=words.names(said.get("Partitions")) or (),
        gpus=tuple(words.gpus(said.get("Gres")).items()),
        cpus=words.number(said.get("CPUEfctv")) or words.number(said.get("CPUTot")),
        memory_mb=words.number(said.get("RealMemory")),
        features=words.names(said.get("ActiveFeatures", said.get("AvailableFeatures"))) or (),
    )


SINFO_FORMAT = "%R|%D|%c|%m|%G|%f"


def sinfo(text: str) -> tuple[Nodes, ...]:
    """Return the nodes in rows of sinfo with `SINFO_FORMAT`.

    >>> sinfo("spot|4|8|64000|gpu:h100:2(S:0-1)|ib,h100")[0].gpus
    (('h100', 2),)
    """
    return tuple(_rows(text))


def _rows(text: str) -> Iterator[Nodes]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == SINFO_FORMAT.count("|") + 1 and (count := words.number(cells[1])):
            yield Nodes(
                partitions=(cells[0].removesuffix("*"),),
                count=count,
                cpus=words.number(cells[2]),
                memory_mb=words.number(cells[3]),
                gpus=tuple(words.gpus(cells[4]).items()),
                features=words.names(cells[5]) or (),
            )
