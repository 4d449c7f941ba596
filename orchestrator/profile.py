"""The site profile: what the cluster is, each fact with its source."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from orchestrator import resources
from orchestrator.clouds import Cloud
from orchestrator.errors import ProfileError
from orchestrator.fields import EnvVars, Line, SbatchValue, Strict, TimeLimit, read_yaml, validate

Count = Annotated[int, Field(ge=1, strict=True)]


class GpuProfile(Strict):
    """The GPUs of a node."""

    model: Line
    per_node: Count
    request: Literal["gpus-per-node", "gpus-per-node-typed", "gres", "gres-typed", "none"] = (
        "gpus-per-node"
    )
    type: SbatchValue | None = None


class PartitionProfile(Strict):
    """One partition and how jobs in it are preempted."""

    time_limit: TimeLimit | None = None
    max_nodes: Count | None = None
    preempt: Literal["off", "requeue", "cancel"] = "off"
    grace_s: Annotated[int, Field(ge=0, strict=True)] | None = None
    constraint: SbatchValue | None = None
    comment: SbatchValue | None = None
    cloud: Cloud | None = None


class FabricProfile(Strict):
    """The network between nodes, and the name NCCL's log gives it."""

    kind: Literal["infiniband", "roce", "efa", "slingshot", "omnipath", "ethernet", "none"]
    rate: Line | None = None
    hcas_per_node: Count | None = None
    network: Line | None = None
    # Bus bandwidth of a large all-reduce between nodes, in GB/s per rank.
    busbw_gbs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class SiteProfile(Strict):
    """A site profile, validated."""

    name: Line
    description: Line
    scheduler: Literal["slurm", "local"] = "slurm"
    extends: Line | None = None
    source: tuple[Line, ...]
    checked: Line
    confidence: Literal["high", "medium", "own"]
    gpu: GpuProfile | None = None
    cpus_per_node: Count | None = None
    default_partition: SbatchValue | None = None
    partitions: dict[SbatchValue, PartitionProfile] = Field(default_factory=dict)
    account_required: bool = False
    fabric: FabricProfile
    cloud: Cloud = "none"
    stop_on_rebalance: bool = False
    env: EnvVars = Field(default_factory=dict)
    modules: tuple[Line, ...] = ()
    notes: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _rebalance_is_of_aws(self) -> "SiteProfile":
        clouds = {self.cloud, *(partition.cloud for partition in self.partitions.values())}
        if self.stop_on_rebalance and "aws" not in clouds:
            raise ValueError("stop_on_rebalance needs `cloud: aws`; no other cloud recommends that")
        return self


def shipped() -> list[str]:
    """Return the names of the profiles that come with fsdpq, sorted."""
    entries = resources.root("site").iterdir()
    return sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml"))


def load_profile(site: str, *, base: Path) -> SiteProfile:
    """Return the profile called ``site``: a shipped name, or a path to a file of the user's.

    Relative paths are relative to ``base``.

    Raises:
        ProfileError: There is no such profile, or it cannot be used.
    """
    path = _locate(site, base=base)
    data = read_yaml(path, error=ProfileError)
    if (parent := data.get("extends")) is not None:
        data = _extend(parent, data, path=path)
    return validate(SiteProfile, data, where=path, error=ProfileError)


def _locate(site: str, *, base: Path) -> Path:
    if site.endswith((".yaml", ".yml")) or "/" in site:
        try:
            return base / Path(site).expanduser()
        except RuntimeError as problem:  # ~somebody who has no home here
            raise ProfileError(f"site: {site}: {problem}") from None
    if site not in shipped():
        raise ProfileError(
            f"site: there is no profile {site!r}; shipped ones: {', '.join(shipped())}."
            " For one of your own give the path of its file"
        )
    return Path(str(resources.root("site").joinpath(f"{site}.yaml")))


def _extend(parent: object, data: dict[str, Any], *, path: Path) -> dict[str, Any]:
    """Lay ``data`` over its parent: one level, mappings merged, everything else replaced."""
    if not isinstance(parent, str):
        raise ProfileError(f"{path}: extends: must name a profile")
    base = read_yaml(_locate(parent, base=path.parent), error=ProfileError)
    if "extends" in base:
        raise ProfileError(f"{path}: extends: {parent!r} extends another one; one level is allowed")
    return _merge(base, data)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
