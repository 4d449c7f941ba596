"""The job file: what the user wants.

Options that go to sbatch are spelled as sbatch spells them. Units stand in the key, except for
`time_limit`, which takes sbatch's own notation.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, model_validator

from orchestrator.errors import SpecError
from orchestrator.keys.counts import Cpus, Gib, Gpus, Nodes
from orchestrator.keys.fields import (
    EnvVars,
    Line,
    RunName,
    SbatchValue,
    Strict,
    TimeLimit,
    read_scalar,
    read_yaml,
    validate,
)
from orchestrator.keys.options import SbatchOptions
from orchestrator.keys.topology import Switches
from orchestrator.spec.code import Code, CodeSpec
from orchestrator.spec.container import Container
from orchestrator.spec.hang import HangSpec
from orchestrator.spec.preflight import CERTAIN, PreflightSpec
from orchestrator.spec.restart import ElasticSpec, RestartSpec
from orchestrator.spec.train import TrainSpec


class NoticeSpec(Strict):
    """How the job wants to hear that its allocation will end."""

    signal: Literal["USR1", "USR2"] = "USR2"
    lead_s: Annotated[int, Field(ge=1, le=65535, strict=True)] = 120


class JobSpec(Strict):
    """A job file, validated."""

    name: RunName
    site: Line
    nodes: Nodes = 1
    gpus_per_node: Gpus | None = None
    cpus_per_node: Cpus | None = None
    mem_gib: Gib | None = None
    partition: SbatchValue | None = None
    account: SbatchValue | None = None
    qos: SbatchValue | None = None
    reservation: SbatchValue | None = None
    constraint: SbatchValue | None = None
    comment: SbatchValue | None = None
    preemptible: bool = False
    exclude: tuple[SbatchValue, ...] = ()
    switches: Switches | None = None
    sbatch: SbatchOptions = Field(default_factory=dict)
    time_limit: TimeLimit | None = None
    workdir: Line | None = None
    python: Line | None = None
    container: Container | None = None
    modules: tuple[Line, ...] = ()
    env: EnvVars = Field(default_factory=dict)
    notice: NoticeSpec = NoticeSpec()
    restart: RestartSpec = RestartSpec()
    elastic: ElasticSpec | None = None
    code: Code = CodeSpec()
    preflight: PreflightSpec = CERTAIN
    require_rdma: StrictBool = False
    hang: HangSpec = HangSpec()
    train: TrainSpec | None = None
    script: Line | None = None
    args: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _one_program(self) -> "JobSpec":
        if (self.train is None) == (self.script is None):
            raise ValueError(
                "give either `train:` (fsdpq's own trainer) or `script:` (a Python script of"
                " yours, with `args:`), and not both"
            )
        if self.args and self.script is None:
            raise ValueError("`args:` belongs to `script:`, and there is none")
        return self

    @model_validator(mode="after")
    def _own_micro_batch(self) -> "JobSpec":
        if self.train is None and self.restart.on_gpu_memory != "stop":
            raise ValueError(
                "restart.on_gpu_memory: smaller_micro_batch is for fsdpq's own trainer (`train:`);"
                " fsdpq does not know the micro-batch of a script of yours: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _fewer_nodes(self) -> "JobSpec":
        if self.elastic is not None and self.elastic.min_nodes >= self.nodes:
            raise ValueError(
                f"elastic.min_nodes is {self.elastic.min_nodes} and nodes is {self.nodes}: it must"
                " be smaller; leave `elastic:` out for a fixed number of nodes"
            )
        return self

    @model_validator(mode="after")
    def _lead_fits(self) -> "JobSpec":
        if self.time_limit is not None and self.notice.lead_s >= self.time_limit:
            raise ValueError(
                f"notice.lead_s is {self.notice.lead_s} and the time limit {self.time_limit} s: the"
                " notice must come before the end; shorten the lead or raise time_limit"
            )
        return self


def load_job(path: Path, *, overrides: Sequence[str] = ()) -> JobSpec:
    """Return the job in the file ``path``, with ``overrides`` such as ``nodes=4`` applied.

    Relative paths in the file are relative to the file.

    Raises:
        SpecError: The file or an override cannot be used; says where and what is allowed.
    """
    data: dict[str, Any] = {"name": path.stem, **read_yaml(path, error=SpecError)}
    for override in overrides:
        _apply(data, override)
    spec = validate(JobSpec, data, where=path, error=SpecError)
    try:
        return _absolute(spec, base=path.parent)
    except RuntimeError as problem:  # ~somebody who has no home here
        raise SpecError(f"{path}: a path that starts with '~': {problem}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one dotted key, read as YAML reads its value."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip("."):
        raise SpecError(f"--set {override}: write it as KEY=VALUE, such as nodes=4")
    *parents, last = key.strip().split(".")
    inner: Any = data
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise SpecError(f"--set {override}: {parent!r} holds a value, not keys")
    inner[last] = read_scalar(text, where=f"--set {override}", error=SpecError)


def _absolute(spec: JobSpec, *, base: Path) -> JobSpec:
    def full(text: str | None) -> str | None:
        return None if text is None else str((base / Path(text).expanduser()).absolute())

    # A bare name such as python3 is looked up on the nodes.
    python = full(spec.python) if spec.python and "/" in spec.python else spec.python
    changes: dict[str, Any] = {
        "script": full(spec.script),
        "workdir": full(spec.workdir),
        "python": python,
    }
    if spec.container is not None:
        changes["container"] = spec.container.relative_to(base)
    if spec.train is not None:
        changes["train"] = spec.train.relative_to(base)
    return spec.model_copy(update=changes)


def check_script(spec: JobSpec) -> None:
    """Refuse a job whose script is not there.

    Raises:
        SpecError: There is no such file.
    """
    if spec.script is not None and not Path(spec.script).is_file():
        raise SpecError(f"script: there is no file {spec.script}")


__all__ = ["JobSpec", "NoticeSpec", "RestartSpec", "check_script", "load_job"]
