"""Site profiles: what a cluster is, each fact with its source."""

from orchestrator.profile.container import ContainerProfile
from orchestrator.profile.hardware import FabricProfile, GpuProfile, LoginProfile, StorageProfile
from orchestrator.profile.loading import load_profile, locate, own_names, read_profile, shipped
from orchestrator.profile.schema import Evidence, SiteProfile, Sourced
from orchestrator.profile.terms import (
    PartitionProfile,
    PreemptibleProfile,
    QosProfile,
    Quota,
    Terms,
)

__all__ = [
    "ContainerProfile",
    "Evidence",
    "FabricProfile",
    "GpuProfile",
    "LoginProfile",
    "PartitionProfile",
    "PreemptibleProfile",
    "QosProfile",
    "Quota",
    "SiteProfile",
    "Sourced",
    "StorageProfile",
    "Terms",
    "load_profile",
    "locate",
    "own_names",
    "read_profile",
    "shipped",
]
