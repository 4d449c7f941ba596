"""What the monitor learns from the environment that node.sh gives it."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from orchestrator.clouds import Cloud
from orchestrator.errors import RunError
from orchestrator.rundir.layout import AttemptLayout
from orchestrator.rundir.limits import Limits

METADATA_URL = "http://169.254.169.254"
_LEAD_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """This node's place in its attempt.

    Attributes:
        local_dir: A folder on the node's own disk.
        notice_file: What the workers of this node look at every step.
        node: The node's number in the job, from 0.
        nodes: How many nodes the job has.
        host: What the scheduler calls the node; its host name where there is no Slurm.
        cloud: Whose metadata service is asked.
        stop_on_rebalance: Whether a mere recommendation (AWS) is a notice too.
        lead_s: How many seconds before the end the job wants to know.
        metadata_url: Where that service is; another one only in tests.
        start_s: How long workers may take to be started; None for as long as it takes.
    """

    local_dir: Path
    attempt: AttemptLayout
    notice_file: Path
    node: int
    host: str
    nodes: int = 1
    cloud: Cloud = "none"
    stop_on_rebalance: bool = False
    lead_s: int = _LEAD_S
    metadata_url: str = METADATA_URL
    start_s: float | None = None


def read_environment(variables: Mapping[str, str]) -> NodeEnvironment:
    """Return this node's place in its attempt.

    FSDPQ_METADATA_URL replaces the metadata service's address. It is there for tests: on a real
    machine all three clouds have it at 169.254.169.254.

    Raises:
        RunError: A variable is missing or makes no sense.
    """
    hang = Limits.from_text(variables.get("FSDPQ_HANG") or "")
    return NodeEnvironment(
        local_dir=Path(_text(variables, "FSDPQ_LOCAL_DIR")),
        attempt=AttemptLayout(Path(_text(variables, "FSDPQ_ATTEMPT_DIR"))),
        notice_file=Path(_text(variables, "FSDPQ_NOTICE_FILE")),
        node=_number(variables, "FSDPQ_NODE", 0),
        host=variables.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=_number(variables, "SLURM_JOB_NUM_NODES", 1),
        cloud=_cloud(variables.get("FSDPQ_CLOUD") or "none"),
        stop_on_rebalance=variables.get("FSDPQ_STOP_ON_REBALANCE") == "1",
        lead_s=_number(variables, "FSDPQ_NOTICE_LEAD_S", _LEAD_S),
        metadata_url=variables.get("FSDPQ_METADATA_URL") or METADATA_URL,
        start_s=hang.start_s if hang.enabled else None,
    )


def _text(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise RunError(f"{name} is not set; node.sh of a run starts this, nobody else")
    return variables[name]


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise RunError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def _cloud(name: str) -> Cloud:
    for cloud in get_args(Cloud):
        if name == cloud:
            return cloud  # type: ignore[no-any-return]
    raise RunError(f"FSDPQ_CLOUD is {name!r}; it must be one of {', '.join(get_args(Cloud))}")
