"""A duty of the first node: is the network what the site promises? Once, after the first steps.

Reads the attempt's NCCL logs, a bounded part of them, at the lowest priority, and writes
attempts/N/fabric.json. A job that requires RDMA and does not have it is told to stop as by any
notice: its ranks save first. A script that does not listen is ended, for waiting costs GPU hours.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.fabric import record
from orchestrator.fabric.promise import NO_RDMA, Promise
from orchestrator.monitor.duty import say
from orchestrator.monitor.environment import NodeEnvironment
from orchestrator.monitor.note_file import append
from orchestrator.rundir.attempt import Network
from orchestrator.rundir.beat import beats_folder
from orchestrator.rundir.layout import RunLayout

# Without a step: a script may never tell its steps, and a start may take minutes.
_FIRST_S = 60.0
_LOOKS = 6
# After the notice: a script with our runtime saves first, and another one does not listen.
_PATIENCE_S = 900.0
_DEAF_S = 20.0
_LAUNCHER = b"torch.distributed.run"


class Fabric:
    """Looks until the logs say something after the first step, or long enough without one."""

    every_s = 5.0

    def __init__(
        self,
        env: NodeEnvironment,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] | None = None,
    ) -> None:
        """Prepare to look.

        Args:
            env: This node's place in its attempt.
            clock: Seconds, monotonic.
            end: Ends the launcher of this node's workers; as `end_launcher`, if left out.
        """
        self._env = env
        self._files = env.attempt
        self._clock = clock
        self._end = end or end_launcher
        self._next_at = clock() + _FIRST_S
        self._looks = 0
        self._done = False
        self._told_at: float | None = None
        self._plan: dict[str, Any] | None = None

    def tick(self) -> None:
        """Look if it is time to; end what did not listen.

        Raises:
            OSError: The verdict or the notice cannot be written; the next tick tries again.
        """
        if self._told_at is not None:
            self._end_what_goes_on(self._told_at)
        elif not self._done and (self._stepped() or self._clock() >= self._next_at):
            self._look(final=self._stepped())

    def _stepped(self) -> bool:
        return isinstance(_read(self._files.progress).get("step"), int)

    def _look(self, *, final: bool) -> None:
        self._looks += 1
        self._next_at = self._clock() + _FIRST_S * 2.0 ** (self._looks - 1)
        _step_back()
        plan = self._planned()
        policy = plan.get("policy")
        require = isinstance(policy, dict) and policy.get("require_rdma") is True
        promise = Promise.from_json(plan.get("fabric"))
        found = record.look(self._files, promise, nodes=self._env.nodes)
        network = record.of_diagnosis(found, require=require, at=round(time.time(), 3))
        if network.verdict != "unknown":
            record.write(self._files, found, network)
        # Ranks may be past a step before all of what their processes print is on the disk.
        settled = final and network.verdict != "unknown"
        self._done = settled or network.stop or self._looks >= _LOOKS
        if self._done and network.flagged:
            say(f"{network.why}. {network.advice}")
        if network.stop:
            self._tell(network)

    def _planned(self) -> dict[str, Any]:
        if self._plan is None:
            self._plan = _read(RunLayout(self._files.root.parents[1]).plan)
        return self._plan

    def _tell(self, network: Network) -> None:
        """Write the notice where the ranks of this node look; their vote carries it to all."""
        line = f"{NO_RDMA} {int(network.at)}\n"
        append(self._env.notice_file, line)
        append(self._files.root / f"notice.{self._env.node}", line)
        self._told_at = self._clock()
        say("require_rdma: the job is told to save and stop")

    def _end_what_goes_on(self, told_at: float) -> None:
        listens = any(beats_folder(self._env.local_dir).glob("rank-*"))
        if self._clock() - told_at > (_PATIENCE_S if listens else _DEAF_S):
            say("require_rdma: the workers went on, so they are ended")
            self._told_at = self._clock()
            self._end()


def end_launcher() -> None:
    """Ask torchrun on this node to end its workers: it was told to listen to SIGINT alone."""
    parent = os.getppid()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(words[1]) == parent and _LAUNCHER in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGINT)


def _step_back() -> None:
    """Give this thread the lowest priority: the cores belong to the training."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
