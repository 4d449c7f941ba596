"""What ranks vote on after a step, as numbers: they agree by a maximum of each. Pure.

A notice is a number too, and the most urgent one wins.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import clouds
from orchestrator.fabric.promise import NO_RDMA
from orchestrator.runtime.environment import Environment
from orchestrator.runtime.notices import Notice

_TERM = 1000  # above all signal numbers: it leaves the least time
_WORDS = 100  # above all signal numbers as well: a cloud leaves less time than a signal promises
WORDS = (NO_RDMA, *clouds.WORDS)
_OTHER = 1  # SIGHUP's number, which is no notice; stands for words that nobody here knows


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank says, or all of them together.

    Attributes:
        notice: For which to stop.
        due: Whether a checkpoint is due.
        lost: Whether the save in the background came to nothing.
        busy: Whether it still goes on.
        times_s: For how long each rank was busy by itself; empty if they do not say.
    """

    notice: Notice | None
    due: bool
    lost: bool
    busy: bool
    times_s: tuple[float, ...] = ()

    def numbers(self) -> list[int]:
        """Return it as numbers, times in microseconds."""
        flags = [int(flag) for flag in (self.due, self.lost, self.busy)]
        return [encode(self.notice), *flags, *(round(time_s * 1e6) for time_s in self.times_s)]

    def outcome(self, most: Sequence[int]) -> "Vote":
        """Return what all ranks say, where ``most`` are the largest of their numbers."""
        number, due, lost, busy, *times = most
        mine = self.notice is not None and encode(self.notice) == number
        return Vote(
            self.notice if mine else decode(number),
            bool(due),
            bool(lost),
            bool(busy),
            tuple(time_us / 1e6 for time_us in times),
        )


def own_times(own_s: float | None, env: Environment) -> tuple[float, ...]:
    """Return a place for each rank, with the seconds of this one in its own.

    After the vote all of them are filled.
    """
    if own_s is None:
        return ()
    return tuple(own_s if rank == env.rank else 0.0 for rank in range(env.world_size))


def encode(notice: Notice | None) -> int:
    """Return 0 for no notice, and the more the more urgent it is."""
    if notice is None:
        return 0
    if notice.urgent:
        return _TERM
    if notice.signal in WORDS:
        return _WORDS + WORDS.index(notice.signal)
    return int(signal.Signals.__members__.get(f"SIG{notice.signal}", _OTHER))


def decode(number: int) -> Notice | None:
    """Return the notice of another rank that voted ``number``."""
    if number == 0:
        return None
    if number == _TERM:
        return Notice("TERM", 0.0, "vote")
    return Notice(_name(number), 0.0, "vote")


def _name(number: int) -> str:
    if number == _OTHER:
        return "NOTICE"
    if number >= _WORDS:
        return WORDS[number - _WORDS]
    return signal.Signals(number).name.removeprefix("SIG")
