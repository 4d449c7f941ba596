"""What a worker learns from its environment: who it is, and where its run lives."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.durable import write_text
from orchestrator.errors import RunError
from orchestrator.rundir.layout import AttemptLayout, RunLayout

_STANDALONE = "fsdpq-run"
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """A worker's place in its run, as the launcher and torchrun told it."""

    run: RunLayout
    attempt: int
    checkpoints: Path
    notice_file: Path | None
    notice_signals: tuple[str, ...]
    rank: int
    world_size: int
    local_rank: int
    under_torchrun: bool

    @property
    def files(self) -> AttemptLayout:
        """The names of this attempt's files."""
        return self.run.attempt(self.attempt)


def read_environment(variables: Mapping[str, str]) -> Environment:
    """Return the worker's place in its run. Side effect: makes the attempt's folder.

    Without FSDPQ_RUN_DIR the script runs on its own, in ./fsdpq-run: the same code works on a
    laptop, and a second start there resumes the first.

    Raises:
        RunError: A variable is missing or makes no sense, or the run directory is not there.
    """
    rank = _number(variables, "RANK", 0)
    root = variables.get("FSDPQ_RUN_DIR")
    run = RunLayout(Path(root) if root else Path.cwd() / _STANDALONE)
    if root and not run.root.is_dir():
        raise RunError(f"FSDPQ_RUN_DIR: there is no directory {run.root} on this node")
    attempt = _number(variables, "FSDPQ_ATTEMPT", 1 if root else 0)
    if not attempt:
        attempt = _standalone_attempt(run, variables)
    run.attempt(attempt).root.mkdir(mode=0o700, parents=True, exist_ok=True)
    notice_file = variables.get("FSDPQ_NOTICE_FILE")
    return Environment(
        run=run,
        attempt=attempt,
        checkpoints=Path(variables.get("FSDPQ_CHECKPOINT_DIR") or run.checkpoints),
        notice_file=Path(notice_file) if notice_file else None,
        notice_signals=_signals(variables.get("FSDPQ_NOTICE_SIGNALS") or "USR2,TERM"),
        rank=rank,
        world_size=_number(variables, "WORLD_SIZE", 1),
        local_rank=_number(variables, "LOCAL_RANK", 0),
        under_torchrun="TORCHELASTIC_RUN_ID" in variables,
    )


def attempt_numbers(run: RunLayout) -> list[int]:
    """Return the numbers of the attempts that have a folder, in order.

    Raises:
        OSError: The folder of the attempts cannot be listed.
    """
    return run.attempt_numbers(path.name for path in run.attempts.iterdir())


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit()):
        raise RunError(f"{name} is {text!r}; it must be a whole number")
    return int(text)


def _signals(text: str) -> tuple[str, ...]:
    names = [name.strip().upper().removeprefix("SIG") for name in text.split(",")]
    # TERM is always watched: torchrun says with it that another worker died.
    return tuple(dict.fromkeys([*(name for name in names if name), "TERM"]))


def _standalone_attempt(run: RunLayout, variables: Mapping[str, str]) -> int:
    """Return the number of this start where no launcher gave one.

    The worker with local rank 0 takes the next number; the others find it by the parent that all
    workers of one torchrun share.
    """
    if variables.get("GROUP_WORLD_SIZE", "1") != "1":
        raise RunError(
            "set FSDPQ_RUN_DIR and FSDPQ_ATTEMPT on every node: on several nodes the ranks cannot"
            " agree on them by themselves"
        )
    run.attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
    parent = _parent_identity()
    if _number(variables, "LOCAL_RANK", 0) == 0:
        return _take_attempt(run, parent)
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for number in attempt_numbers(run)[:-3:-1]:
            if _started_by(run, number) == parent:
                return number
        time.sleep(0.05)
    raise RunError(f"{run.root}: rank 0 of this start has not shown up within {_WAIT_S:.0f} s")


def _take_attempt(run: RunLayout, parent: str) -> int:
    number = max(attempt_numbers(run), default=0)
    while True:
        number += 1
        try:
            run.attempt(number).root.mkdir(mode=0o700)
        except FileExistsError:
            continue
        write_text(run.attempt(number).root / "started-by", parent, durable=False)
        return number


def _started_by(run: RunLayout, number: int) -> str:
    try:
        return (run.attempt(number).root / "started-by").read_text()
    except OSError:
        return ""


def _parent_identity() -> str:
    """Return the parent's process id and start time: ids alone are used again."""
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{parent}"
    return f"{parent} {fields[19]}"
