"""The site profile: what the cluster is, each fact with its source."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.clouds import Cloud
from orchestrator.keys.counts import Count
from orchestrator.keys.fields import EnvVars, Line, SbatchValue, Strict
from orchestrator.keys.options import Forbidden, Options
from orchestrator.profile.container import ContainerProfile
from orchestrator.profile.hardware import (
    FabricProfile,
    GpuProfile,
    LoginProfile,
    StorageProfile,
)
from orchestrator.profile.terms import (
    PartitionProfile,
    PreemptibleProfile,
    QosProfile,
    Quota,
    Terms,
)

Confidence = Literal["high", "medium", "low", "own"]


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must be an absolute path")
    return text


class Sourced(Strict):
    """A script of the site that sets up its network library, and variables that steer it."""

    path: Annotated[Line, AfterValidator(_path)]
    env: EnvVars = Field(default_factory=dict)


class Evidence(Strict):
    """Where a fact comes from.

    Attributes:
        source: What says so: a page, a file, the command that showed it.
        confidence: How far to trust it; the profile's own, if left out.
    """

    source: Line
    confidence: Confidence | None = None


def _evidence(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class SiteProfile(Strict):
    """A site profile, validated.

    Attributes:
        source: What the profile was made from.
        evidence: For a key of this file, or the beginning of one: where it comes from.
        memory_gib_per_gpu: Asked for with each GPU of a node; `memory: all` is the whole node's.
        terms: What holds wherever neither partition nor QOS says otherwise.
        account_form: How accounts look there, such as kempner_<lab>_lab.
        options: More options for sbatch; `true` for one without a value.
        forbidden: Options that the site refuses, and why.
        srun: More options for srun.
        env: Set on every node. `env_host` and `env_container` only in that way to start, and
            `env_multi_node` only where there are several nodes. ${SLURM_JOB_ID} in a value is the
            job's id.
        prepend: Put before what a list of paths, such as LD_LIBRARY_PATH, holds already.
        scripts: Sourced before `env` is set.
        storage: File systems by the path where they begin.
    """

    name: Line
    description: Line
    scheduler: Literal["slurm", "local"] = "slurm"
    extends: Line | None = None
    source: Annotated[tuple[Line, ...], Field(min_length=1)]
    checked: Line
    confidence: Confidence
    evidence: dict[str, Annotated[Evidence, BeforeValidator(_evidence)]] = Field(
        default_factory=dict
    )
    gpu: GpuProfile | None = None
    cpus_per_node: Count | None = None
    memory: Literal["all"] | None = None
    memory_gib_per_gpu: Count | None = None
    terms: Terms | None = None
    default_partition: SbatchValue | None = None
    partitions: dict[SbatchValue, PartitionProfile] = Field(default_factory=dict)
    default_qos: SbatchValue | None = None
    qos: dict[SbatchValue, QosProfile] = Field(default_factory=dict)
    preemptible: PreemptibleProfile | None = None
    quotas: tuple[Quota, ...] = ()
    account_required: bool = False
    account_form: Line | None = None
    constraint: SbatchValue | None = None
    options: Options = Field(default_factory=dict)
    forbidden: Forbidden = Field(default_factory=dict)
    srun: Options = Field(default_factory=dict)
    fabric: FabricProfile
    cloud: Cloud = "none"
    stop_on_rebalance: bool = False
    env: EnvVars = Field(default_factory=dict)
    env_host: EnvVars = Field(default_factory=dict)
    env_container: EnvVars = Field(default_factory=dict)
    env_multi_node: EnvVars = Field(default_factory=dict)
    prepend: EnvVars = Field(default_factory=dict)
    scripts: tuple[Sourced, ...] = ()
    modules: tuple[Line, ...] = ()
    container: ContainerProfile | None = None
    storage: dict[Line, StorageProfile] = Field(default_factory=dict)
    login: LoginProfile | None = None
    notes: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _one_memory(self) -> "SiteProfile":
        if self.memory is not None and self.memory_gib_per_gpu is not None:
            raise ValueError("give either `memory` or `memory_gib_per_gpu`, and not both")
        return self

    @model_validator(mode="after")
    def _rebalance_is_of_aws(self) -> "SiteProfile":
        clouds = {self.cloud, *(partition.cloud for partition in self.partitions.values())}
        if self.stop_on_rebalance and "aws" not in clouds:
            raise ValueError("stop_on_rebalance needs `cloud: aws`; no other cloud recommends that")
        return self

    @model_validator(mode="after")
    def _evidence_is_for_something(self) -> "SiteProfile":
        facts = list(self.facts())
        for key in self.evidence:
            if not any(_begins(fact, key) for fact in facts):
                raise ValueError(f"evidence.{key}: the profile says nothing of {key}; remove it")
        return self

    def facts(self) -> Iterator[str]:
        """Yield the dotted keys that the profile gives, but for those about the profile itself."""
        yield from (fact for fact, _ in self.told())

    def told(self) -> Iterator[tuple[str, Any]]:
        """Yield each fact as (dotted key, value)."""
        yield from told_of(self.model_dump(exclude_unset=True))

    def evidence_of(self, fact: str) -> Evidence:
        """Return where a dotted key comes from; the most exact evidence that there is."""
        keys = [key for key in self.evidence if _begins(fact, key)]
        found = self.evidence[max(keys, key=len)] if keys else Evidence(source=self.source[0])
        return found.model_copy(update={"confidence": found.confidence or self.confidence})


_OF_ITSELF = frozenset(
    {"name", "description", "extends", "source", "checked", "confidence", "evidence", "notes"}
)


def facts_of(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of a profile's data, but for those about the profile itself."""
    yield from (fact for fact, _ in told_of(data))


def told_of(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a profile's data as (dotted key, value)."""
    yield from _dotted({key: data[key] for key in data if key not in _OF_ITSELF}, ())


def _begins(fact: str, key: str) -> bool:
    return fact == key or fact.startswith(f"{key}.")


def _dotted(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _dotted(inner, (*path, str(key)))
    elif path:
        yield ".".join(path), value
