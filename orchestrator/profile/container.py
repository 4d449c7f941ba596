"""How a site runs containers."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.fields import EnvVars, Line, Strict

Runtime = Literal["pyxis", "apptainer", "singularity", "shifter", "podman-hpc", "edf"]


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must be an absolute path of the host, or HOST:CONTAINER")
    return text


Mount = Annotated[Line, AfterValidator(_absolute)]


class ContainerProfile(Strict):
    """The runtime, and what every container there needs to reach GPUs and network.

    Attributes:
        runtime: `pyxis` is srun's plug-in for enroot, `edf` is srun's --environment (CSCS).
        mounts: Paths of the host, or HOST:CONTAINER.
        pass_env: Names, or beginnings with a *, of variables that go from the host into it.
        options: More options of the runtime, one word each.
        env: Set inside only.
    """

    runtime: Runtime
    mounts: tuple[Mount, ...] = ()
    pass_env: tuple[Line, ...] = ()
    options: tuple[Line, ...] = ()
    env: EnvVars = Field(default_factory=dict)
    note: Line | None = None
