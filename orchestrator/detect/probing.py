"""Run the probe on a compute node: the effects."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator import script
from orchestrator.detect import node
from orchestrator.detect.node import Node
from orchestrator.directives import gpu_request
from orchestrator.errors import QueryError, SchedulerError
from orchestrator.profile import PartitionProfile, SiteProfile
from orchestrator.slurm import client, commands

# What the probe itself may take: it has time-outs for all that can hang.
_MINUTES = 5
_TELL_S = 15.0
_LOOK_S = 0.5
_ENDS_S = 10.0
_TIMEOUT_S = 30.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Where the probe goes.

    Attributes:
        wait_s: How long it may wait for nodes.
    """

    partition: str
    nodes: int = 1
    account: str | None = None
    wait_s: float = 900.0


def options(profile: SiteProfile, request: Request) -> list[str]:
    """Return the options of srun for whole nodes of a partition. Pure."""
    known = profile.partitions.get(request.partition, PartitionProfile())
    gpu = known.gpu or profile.gpu
    wanted: list[tuple[str, str | None]] = [
        ("partition", request.partition),
        ("account", request.account),
        ("qos", known.qos or profile.default_qos),
        ("constraint", known.constraint or profile.constraint),
        ("exclusive", "" if known.exclusive else None),
    ]
    if gpu is not None:
        wanted.append(gpu_request(gpu, gpu.per_node, nodes=request.nodes))
    given = [(name, value) for name, value in wanted if value is not None]
    return [f"--{name}={value}" if value else f"--{name}" for name, value in given]


def look(profile: SiteProfile, request: Request, *, say: Say) -> tuple[Node, ...]:
    """Return what compute nodes show; waits for them, and cancels the job if that is ended.

    Args:
        profile: The site, as far as it is known.
        request: Where to look.
        say: Takes a line about how it gets on.

    Raises:
        QueryError: No node answered: the job was refused, waited too long or failed.
    """
    name = f"fsdpq-detect-{os.getpid()}-{os.urandom(3).hex()}"
    argv = commands.probe(
        script.fill("probe.sh.j2"),
        name=name,
        nodes=request.nodes,
        minutes=_MINUTES,
        options=options(profile, request),
    )
    shown = [*argv[:-3], "probe"]
    stdout, stderr, code = _run(argv, name, shown, wait_s=request.wait_s, say=say)
    found = node.nodes(stdout)
    if not found:
        raise QueryError(shown, returncode=code, stderr=stderr or "it printed nothing")
    return found


def _run(
    argv: Sequence[str], name: str, shown: Sequence[str], *, wait_s: float, say: Say
) -> tuple[str, str, int]:
    try:
        process = subprocess.Popen(  # noqa: S603 (an argument list of ours, no shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=client.clean_environment(os.environ),
            start_new_session=True,  # Ctrl-C is ours to answer
        )
    except OSError as problem:
        raise QueryError(shown, returncode=127, stderr=str(problem)) from None
    try:
        stdout, stderr = _wait(process, name, shown, wait_s=wait_s, say=say)
    finally:
        if process.poll() is None:
            _end(process, name)
    return stdout, stderr, process.returncode


def _wait(
    process: subprocess.Popen[str], name: str, shown: Sequence[str], *, wait_s: float, say: Say
) -> tuple[str, str]:
    began = told = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK_S)
        now = time.monotonic()
        if now - told < _TELL_S:
            continue
        told, state = now, _state(name)
        say(f"{now - began:.0f} s: the probe is {state or 'with Slurm'}; Ctrl-C cancels it")
        running = state.startswith("RUNNING")
        if now - began > wait_s + (_MINUTES * 60 if running else 0):
            why = f"no node after {now - began:.0f} s ({state or 'no state'}); cancelled"
            raise QueryError(shown, returncode=None, stderr=why)


def _state(name: str) -> str:
    try:
        said = client.run(commands.named_jobs(name), timeout_s=_TIMEOUT_S, error=QueryError)
    except QueryError:
        return ""
    return " ".join(said.stdout.split())


def _end(process: subprocess.Popen[str], name: str) -> None:
    """End srun, then the job in case that did not."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDS_S)
    with suppress(SchedulerError):
        client.run(commands.cancel_named(name), timeout_s=_TIMEOUT_S, error=QueryError)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
