"""What a round starts and kills: a process that runs `fsdpq ARGS` as a user's would.

It is forked from a process that has imported everything, so it starts in milliseconds. The code is
the product's, from the command line on. Three things are not: the time is the round's (`clock`),
so that the product's own waits of minutes need not be waited for, nor its constants changed; the
age of a file is told by that clock too; and the process may kill itself when it is about to write,
rename or start something for the n-th time, or in the middle of a line of the event log.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.cli import main
from orchestrator.runstore import claims
from orchestrator.watching import act
from tests.rounds.clock import Clock

_POLL_S = 0.003
_real_sleep = time.sleep
_EFFECTS = ("os.rename", "os.mkdir", "os.remove", "subprocess.Popen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One process of a round.

    Attributes:
        who: Its name in the journal.
        argv: What the user types behind `fsdpq`.
        after_s: When it starts, in seconds of the machine from the start of the phase.
        lives_s: When it is killed from outside, counted from its start; None if it is not.
        point: Before which of its own effects it kills itself; None if it does not.
        torn: It dies there in the middle of a line.
    """

    who: str
    argv: tuple[str, ...]
    after_s: float = 0.0
    lives_s: float | None = None
    point: int | None = None
    torn: bool = False


def fork(deed: Deed, folder: Path, *, sabotage: bool = False) -> int:
    """Start the process and return its id."""
    if pid := os.fork():
        return pid
    try:
        _be(deed, folder, sabotage=sabotage)
    except BaseException as problem:
        os.write(2, f"{deed.who}: {problem!r}\n".encode())
        os._exit(99)


def _be(deed: Deed, folder: Path, *, sabotage: bool) -> NoReturn:
    os.setpgid(0, 0)
    log = os.open(folder / f"{deed.who}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    start = claims._start(os.getpid())
    told = {"ROUNDS_WHO": deed.who, "ROUNDS_PID": str(os.getpid()), "ROUNDS_START": str(start)}
    os.environ |= {**told, "PATH": f"{folder}/bin:/usr/bin:/bin"}
    _tell_time(Clock(f"{folder}/clock"))
    if sabotage:
        act._objection = lambda *_: _late()
    if deed.point is not None:
        _die_at(deed.point, torn=deed.torn)
    try:
        main(list(deed.argv), standalone_mode=True)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
    os._exit(0)


def _late() -> str:
    """Claim nothing and look at nothing again, when all others have decided, too."""
    _real_sleep(1.0)
    return ""


def _tell_time(clock: Clock) -> None:
    real_monotonic, real_sleep = time.monotonic, time.sleep

    def sleep(seconds: float) -> None:
        until = clock.now() + seconds
        while clock.now() < until:
            real_sleep(_POLL_S)

    def age_s(path: Path) -> float:
        try:
            return clock.now() - clock.shown_at(path.stat().st_mtime)
        except OSError:
            return 0.0

    time.time = clock.now
    time.monotonic = lambda: real_monotonic() + clock.offset()
    time.sleep = sleep  # type: ignore[assignment]
    claims._age_s = age_s


def _die_at(point: int, *, torn: bool) -> None:
    """Count this process's effects and kill it before the ``point``-th."""
    left = point
    real_write = os.write

    def reached() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        ours = writes and "clock" not in str(args[0]) and "/dev/" not in str(args[0])
        if (ours or event in _EFFECTS) and reached():
            os.kill(os.getpid(), signal.SIGKILL)

    def write(descriptor: int, data: bytes) -> int:
        if reached():
            real_write(descriptor, data[: len(data) // 2] if torn else data)
            os.kill(os.getpid(), signal.SIGKILL)
        return real_write(descriptor, data)

    os.write = write  # type: ignore[assignment]
    sys.addaudithook(hook)
