"""A real Slurm cluster for the tests, in one process tree that leaves nothing behind."""

from .cluster import Cluster
from .config import ClusterConfig, ComputeHost, SlurmVersion, Topology
from .daemons import DaemonError
from .namespace import NamespaceError

__all__ = [
    "Cluster",
    "ClusterConfig",
    "ComputeHost",
    "DaemonError",
    "NamespaceError",
    "SlurmVersion",
    "Topology",
]
