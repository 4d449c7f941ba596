"""How a site runs containers."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.keys.fields import EnvVars, Line, Strict
from orchestrator.keys.mounts import Mount

Runtime = Literal["pyxis", "apptainer", "singularity", "shifter", "podman-hpc", "edf"]


def _pattern(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", text):
        raise ValueError("must be the name of a variable, or its beginning with a *, such as UCX_*")
    return text


class ContainerProfile(Strict):
    """The runtime, and what every container there needs to reach GPUs and network.

    Attributes:
        runtime: `pyxis` is srun's plug-in for enroot, `edf` is srun's --environment (CSCS).
        mounts: Paths of the host, HOST:CONTAINER, or HOST:CONTAINER:ro.
        pass_env: Names, or beginnings with a *, of variables that go from the host into it.
        options: More options of the runtime, one word each. With shifter, `--module=...` goes to
            sbatch. With edf, NAME=VALUE is an annotation; what begins with -- goes to srun.
        env: Set inside only.
    """

    runtime: Runtime
    mounts: tuple[Mount, ...] = ()
    pass_env: tuple[Annotated[Line, AfterValidator(_pattern)], ...] = ()
    options: tuple[Line, ...] = ()
    env: EnvVars = Field(default_factory=dict)
    note: Line | None = None
