"""A process tree with its own network, hostname, mounts and process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .config import ROOT, SYSTEM_ENVIRONMENT, User

UNSHARE = (
    "unshare",
    *("--net", "--uts", "--ipc", "--mount", "--pid"),
    *("--fork", "--kill-child", "--mount-proc"),
)
ENTER = ("--net", "--uts", "--ipc", "--mount", "--pid", "--root", "--wd")
# Ends all processes that the caller may signal, in its own tree. Bash's own kill, for some
# releases of the program do not take -1 for a process.
KILL_ALL = ("bash", "-c", "kill -KILL -1")
READY = "namespace is ready"


class NamespaceError(RuntimeError):
    """A namespace did not come up; the text is what its set-up printed."""


class Namespace:
    """A running tree. It lives until its first process ends, which takes all others along."""

    def __init__(self, process: subprocess.Popen[str], pid: int) -> None:
        self._process = process
        self.pid = pid

    @property
    def alive(self) -> bool:
        """Whether the first process still runs."""
        return self._process.poll() is None

    def enter(self, user: User = ROOT) -> list[str]:
        """The words that, put before a command, run it in here as a user.

        Killing the process so started kills the command too, though not its children.
        """
        drop = [f"--reuid={user.uid}", f"--regid={user.uid}", "--init-groups"]
        return [
            *("nsenter", f"--target={self.pid}", *ENTER),
            *("setpriv", *drop, "--pdeathsig=KILL"),
        ]

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in here as root; its output is text."""
        return subprocess.run(
            [*self.enter(), *argv],
            env=SYSTEM_ENVIRONMENT,
            check=check,
            timeout=timeout,
            capture_output=True,
            text=True,
        )

    def spawn(self, argv: Sequence[str], *, log: Path) -> int:
        """Start a daemon that the first process adopts; returns its id as seen in here."""
        script = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'
        return int(self.run(["bash", "-c", script, "spawn", str(log), *argv]).stdout)

    def holds(self, pid: int) -> bool:
        """Whether a process started by `spawn` still runs."""
        return self.run(["kill", "-0", str(pid)], check=False).returncode == 0

    def kill(self) -> None:
        """End every process of the tree at once."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Close the first process's standard input, which it may wait for, and await its end."""
        with self._process:
            pass


def open_namespace(
    setup: Sequence[str], *, inside: Namespace | None = None, stay: str, guard: Sequence[str] = ()
) -> Namespace:
    """Start a tree: run the set-up lines in its first process, then let that one stay.

    Args:
        setup: Lines of bash; the first that fails ends the tree.
        inside: The tree that the new one is part of.
        stay: Line of bash that keeps the first process busy. Bash reaps orphans meanwhile.
        guard: Words before the command, for a process that outlives the tree.
    """
    script = "\n".join(["set -e", *setup, f"echo {READY}", stay])
    prefix = inside.enter() if inside else list(guard)
    process = subprocess.Popen(
        [*prefix, *UNSHARE, "bash", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=SYSTEM_ENVIRONMENT,
        cwd="/",  # later commands start where the first process is
        start_new_session=True,  # Ctrl-C is for pytest, which then ends the tree in order
    )
    _wait_until_ready(process)
    return Namespace(process, _first_process(process.pid))


def _wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    printed = ""
    for line in process.stdout:
        if line.strip() == READY:
            return
        printed += line
    raise NamespaceError(f"set-up ended with {process.wait()}: {printed}")


def _first_process(pid: int) -> int:
    """The process id, seen from here, of the bash below a launcher and its unshare."""
    for _ in range(2):
        pid = _only_child(pid)
    return pid


def _only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.01)
    raise NamespaceError(f"process {pid} has no child")
