"""How a worker hears that its allocation will end.

Slurm sends a user signal to every process of the job step, and SIGTERM on some sites only to the
node's wrapper, which then writes the notice file. Both ways end in one flag here; nothing is saved
from a signal handler, because collectives must not run there.

The signals are blocked and a thread waits for them: blocked signals stay blocked in children, so
that data loaders and savers survive a signal sent to all, and the waiting thread learns the sender.
SIGTERM from the parent torchrun means that another worker died: then there is nobody left to save
with, and waiting in a collective would only cost time.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from orchestrator.errors import RunError

PEER_DIED_EXIT = 143
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Notice:
    """Word that the allocation will end soon.

    Attributes:
        signal: Name of the signal without SIG, or what else the notice file said.
        at: When it came, in seconds since 1970; 0 where that is unknown.
        origin: "signal", "file" or "vote" (another rank had it).
    """

    signal: str
    at: float
    origin: str

    @property
    def urgent(self) -> bool:
        """Whether the end is seconds away: SIGTERM promises no more."""
        return self.signal == "TERM"


class NoticeBoard:
    """Collects the notices that this process gets."""

    def __init__(self, *, signals: Iterable[str], file: Path | None, under_torchrun: bool) -> None:
        self._numbers = frozenset(_number(name) for name in signals)
        self._file = file
        # Only torchrun passes a death on; a plain parent that sends SIGTERM means what it says.
        self._torchrun = os.getppid() if under_torchrun else None
        self._notice: Notice | None = None

    def watch(self) -> None:
        """Block the signals and start to wait for them. Side effects on the whole process.

        Raises:
            RunError: This is not the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RunError("runtime.attach() must be called first thing, in the main thread")
        self._block()
        for number in self._numbers:
            # Threads that are older than the mask do not block: without a handler a signal that
            # the kernel gives to one of them would kill the process.
            signal.signal(number, self._handle)
        # It unblocks SIGTERM when it starts, for the caller and for the child that the caller was
        # about to spawn. So it has to start now. Source: CPython, multiprocessing/resource_tracker.
        resource_tracker.ensure_running()
        self._block()
        threading.Thread(target=self._wait, name="fsdpq-notices", daemon=True).start()

    def _block(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)

    def look(self) -> Notice | None:
        """Return the most urgent notice so far, None without one. Costs one stat."""
        if self._file is not None and (found := read_notice_file(self._file)) is not None:
            self._keep(found)
        return self._notice

    def _wait(self) -> None:
        while True:
            info = signal.sigwaitinfo(self._numbers)
            if info.si_signo == signal.SIGTERM and info.si_pid == self._torchrun:
                _end("fsdpq: torchrun ends this worker because another one died\n")
            self._keep(Notice(_name(info.si_signo), time.time(), "signal"))

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._keep(Notice(_name(number), time.time(), "signal"))

    def _keep(self, notice: Notice) -> None:
        if self._notice is None or (notice.urgent and not self._notice.urgent):
            self._notice = notice


def read_notice_file(path: Path) -> Notice | None:
    """Return the most urgent notice in the wrapper's file, None if there is none.

    Each line is a name and, maybe, seconds since 1970: `USR2 1732900000`.
    """
    try:
        if not path.stat().st_size:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    found = [_parse(line) for line in lines if line.strip()]
    return next((notice for notice in found if notice.urgent), found[0] if found else None)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Linux only; elsewhere no effect.

    torchrun starts workers in sessions of their own, so that they would outlive it, hold the GPUs
    and go on writing.
    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    parent = os.getppid()
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os.kill(os.getpid(), signal.SIGKILL)


def _parse(line: str) -> Notice:
    name, _, rest = line.strip().partition(" ")
    try:
        at = float(rest)
    except ValueError:
        at = 0.0
    return Notice(name.upper().removeprefix("SIG"), at, "file")


def _number(name: str) -> signal.Signals:
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        raise RunError(f"FSDPQ_NOTICE_SIGNALS: there is no signal {name!r}") from None


def _name(number: int) -> str:
    return signal.Signals(number).name.removeprefix("SIG")


def _end(text: str) -> None:
    # os.write and os._exit: the main thread may hold any lock at this moment.
    os.write(2, text.encode())
    os._exit(PEER_DIED_EXIT)
