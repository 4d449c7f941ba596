"""Options of sbatch and srun that a profile or a job adds to those that fsdpq sets. Pure."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from orchestrator.keys.fields import Line, sbatch_value

_OPTION = re.compile(r"[a-z][a-z0-9-]*")

# What fsdpq sets by itself, and the key of the job file that changes it.
SET_BY_FSDPQ = {
    "job-name": "name",
    "nodes": "nodes",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "reservation": "reservation",
    "constraint": "constraint",
    "comment": "comment",
    "exclude": "exclude",
    "switches": "switches",
    "time": "time_limit",
    "mem": "mem_gib",
    "cpus-per-task": "cpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus": "gpus_per_node",
    "gres": "gpus_per_node",
    "signal": "notice",
    "chdir": "workdir",
    "export": "env",
}
# ... and what would take the run out of its hands.
NEVER = frozenset(
    {
        "array", "dependency", "error", "input", "no-requeue", "ntasks", "ntasks-per-node",
        "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap",
    }
)  # fmt: skip


def _option(name: str) -> str:
    if not _OPTION.fullmatch(name):
        raise ValueError("is no long option of Slurm; write it without dashes: `exclusive: true`")
    return name


def _text(value: object) -> object:
    """Take `exclusive: true` for an option without a value, and a number for its digits."""
    if value is True:
        return ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _plain(value: str) -> str:
    return sbatch_value(value) if value else value


def _can_do_without(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        if name in NEVER or name in ("job-name", "nodes", "time"):
            raise ValueError(
                f"{name} is an option without which fsdpq loses hold of the run; a site that"
                " refuses it cannot be used"
            )
    return options


def _free(options: dict[str, str]) -> dict[str, str]:
    problems = [text for name in options if (text := _not_free(name))]
    if problems:
        raise ValueError("; ".join(problems))
    return options


def _not_free(name: str) -> str | None:
    if name in NEVER:
        return f"{name} is how fsdpq keeps hold of the run, and cannot be changed"
    if name in SET_BY_FSDPQ:
        return f"{name} is set by fsdpq; use the key `{SET_BY_FSDPQ[name]}`"
    return None


Option = Annotated[str, AfterValidator(_option)]
# "" is an option without a value.
Options = dict[Option, Annotated[str, BeforeValidator(_text), AfterValidator(_plain)]]
Forbidden = Annotated[dict[Option, Line], AfterValidator(_can_do_without)]
SbatchOptions = Annotated[Options, AfterValidator(_free)]
