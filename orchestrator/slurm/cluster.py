"""A cluster as Slurm shows it to one user. Pure."""

from dataclasses import dataclass, field

from orchestrator.slurm.accounting import Association, Qos
from orchestrator.slurm.inventory import Nodes, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster as Slurm shows it to one user.

    Attributes:
        config: The settings that have a value.
        nodes_from: The command that showed the nodes.
        associations: Of the user, and of the accounts of the user.
        unanswered: What Slurm would not say, and why; one line each.
    """

    user: str
    partitions: tuple[Partition, ...]
    config: dict[str, str] = field(default_factory=dict)
    nodes: tuple[Nodes, ...] = ()
    nodes_from: str = "scontrol show node"
    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    qos: tuple[Qos, ...] = ()
    srun_options: str = ""
    unanswered: tuple[str, ...] = ()
