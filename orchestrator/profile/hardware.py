"""What a site's nodes are made of: GPUs, the network between nodes, file systems."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from orchestrator.keys.counts import Count, Gpus
from orchestrator.keys.fields import Line, SbatchValue, Strict
from orchestrator.keys.topology import TopologyProfile, check_rails

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# How GPUs are asked for. `none`: the nodes are exclusive and come with theirs. `forbidden`: the
# same, and the site's submit plugin refuses a job that asks.
Request = Literal[
    "gpus-per-node", "gpus-per-node-typed", "gres", "gres-typed", "gpus", "gpus-typed", "none",
    "forbidden",
]  # fmt: skip
FabricKind = Literal[
    "infiniband", "roce", "efa", "slingshot", "omnipath", "tcpx", "tcpxo", "ethernet", "none",
    "unknown",
]  # fmt: skip


class GpuProfile(Strict):
    """The GPUs of a node.

    Attributes:
        per_node: What a job can have of one node.
        request: How they are asked for; sbatch's option, with the type where it says "typed".
            "gpus" is the total of all nodes.
        type: The word for the model in Slurm, such as `h100`.
    """

    model: Line
    per_node: Gpus
    request: Request = "gpus-per-node"
    type: SbatchValue | None = None
    memory_gib: Positive | None = None
    arch: Literal["x86_64", "aarch64"] | None = None

    @model_validator(mode="after")
    def _typed_has_a_type(self) -> "GpuProfile":
        if self.request.endswith("-typed") and self.type is None:
            raise ValueError(
                f"request: {self.request} asks for GPUs by their type, and there is no `type`; add"
                " it, as `scontrol show node` calls it in Gres=gpu:TYPE:N"
            )
        return self


class FabricProfile(Strict):
    """The network between nodes, and what NCCL's log says when it is used.

    Attributes:
        kind: `unknown` where the site does not say: nothing is expected of it then.
        rate: As the trade calls it, such as NDR400.
        hcas_per_node: How many ports NCCL lists; one that is down is only missing there.
        networks: Names that NCCL may give the network; `IB*` allows for plug-ins of it.
        gdr: Whether GPUDirect RDMA is promised for all GPUs; unknown, if left out.
        busbw_gbs: Bus bandwidth of a large all-reduce between nodes, in GB/s for each GPU.
        topology: How nodes hang together, as far as Slurm knows; asked of Slurm, if left out.
    """

    kind: FabricKind
    rate: Line | None = None
    hcas_per_node: Count | None = None
    networks: tuple[Line, ...] = ()
    gdr: bool | None = None
    busbw_gbs: Positive | None = None
    topology: TopologyProfile | None = None

    @model_validator(mode="after")
    def _rails_are_made_of_hcas(self) -> "FabricProfile":
        check_rails(self.topology, self.hcas_per_node)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names that NCCL may give the network; by the kind, where the profile gives none."""
        return self.networks or _NAMES.get(self.kind, ())


# The plug-in of both says "Libfabric" since 1.12, and "OFI" if NCCL_NET asks for that
# (aws/aws-ofi-nccl#530); sites have old and new ones.
_LIBFABRIC = ("AWS Libfabric", "Libfabric", "OFI")
_NAMES: dict[str, tuple[str, ...]] = {
    "infiniband": ("IB*",),
    "roce": ("IB*",),
    "efa": _LIBFABRIC,
    "slingshot": _LIBFABRIC,
    "tcpx": ("GPUDirectTCPX*",),
    "tcpxo": ("FasTrak*",),
    "ethernet": ("Socket",),
}


class StorageProfile(Strict):
    """One file system, by where it begins.

    Attributes:
        filesystem: Its kind, such as Lustre.
        purge_days: After how many days without access files are deleted.
        node_local: Whether each node has one of its own, so that no other node sees a file there.
    """

    filesystem: Line | None = None
    quota: Line | None = None
    purge_days: Count | None = None
    node_local: bool = False
    note: Line | None = None


class LoginProfile(Strict):
    """What a login node allows.

    Attributes:
        watch: Where `fsdpq watch` may run: in a terminal, from scrontab, or as a small job.
        internet: Whether compute nodes reach it.
    """

    watch: Literal["anywhere", "scrontab", "job"] | None = None
    cpu_minutes: Count | None = None
    memory_gib: Count | None = None
    processes: Count | None = None
    internet: bool | None = None
    note: Line | None = None
