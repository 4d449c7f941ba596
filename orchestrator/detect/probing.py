"""Run the probe on a compute node: the effects."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator import guard, interrupts
from orchestrator.detect import node
from orchestrator.detect.node import Node
from orchestrator.errors import QueryError, SchedulerError
from orchestrator.launchplan import script
from orchestrator.launchplan.directives import gpu_request
from orchestrator.profile import PartitionProfile, SiteProfile
from orchestrator.slurm import client, commands

# What the probe itself may take: it has time-outs for all that can hang.
_MINUTES = 5
_TELL_FIRST_S, _TELL_S = 3.0, 15.0
_LOOK_S = 0.5
_ENDS_S = 10.0
_TIMEOUT_S = 30.0
_CANCEL_S = 15.0

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
    cancel, env = commands.cancel_named(name), client.clean_environment(os.environ)
    process: subprocess.Popen[str] | None = None
    over = False
    with interrupts.as_exceptions(), guard.unless_dismissed(cancel, env=env) as left:
        try:
            process = _start(argv, shown, env)
            stdout, stderr = _wait(process, name, shown, wait_s=wait_s, say=say)
            over = True
        finally:
            # A srun that was just being started may ask Slurm only now: that is left to the guard.
            if over or (_end(process, name) and process is not None):
                left.dismiss()
    return stdout, stderr, process.returncode


def _start(
    argv: Sequence[str], shown: Sequence[str], env: Mapping[str, str]
) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(  # noqa: S603 (an argument list of ours, no shell)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=env,
            start_new_session=True,  # Ctrl-C is ours to answer
        )
    except OSError as problem:
        raise QueryError(shown, returncode=127, stderr=str(problem)) from None


def _wait(
    process: subprocess.Popen[str], name: str, shown: Sequence[str], *, wait_s: float, say: Say
) -> tuple[str, str]:
    began = time.monotonic()
    told = began - _TELL_S + _TELL_FIRST_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK_S)
        now = time.monotonic()
        if now - told < _TELL_S:
            continue
        told, state = now, _state(name)
        say(f"{now - began:.0f} s: its job is {state or 'with Slurm'}; Ctrl-C cancels it")
        running = state.startswith("RUNNING")
        if now - began > wait_s + (_MINUTES * 60 if running else 0):
            why = f"no node after {now - began:.0f} s ({state or 'no state'}); cancelled"
            raise QueryError(shown, returncode=None, stderr=why)


def _state(name: str) -> str:
    """Return the job's state, and why it waits if it does: `PENDING (Resources)`."""
    try:
        said = client.run(commands.named_jobs(name), timeout_s=_TIMEOUT_S, error=QueryError)
    except QueryError:
        return ""
    state, _, reason = " ".join(said.stdout.split()).partition(" ")
    return f"{state} ({reason})" if reason and reason != "None" else state


def _end(process: subprocess.Popen[str] | None, name: str) -> bool:
    """Cancel the job, then end srun; return whether Slurm took the cancelling.

    The job comes first, for it costs the most and this process may not have long to live. What
    srun was sending meanwhile is cancelled after it.
    """
    _cancel(name)
    if process is not None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return _cancel(name)


def _cancel(name: str) -> bool:
    try:
        client.run(commands.cancel_named(name), timeout_s=_CANCEL_S, error=QueryError)
    except SchedulerError:
        return False
    return True
