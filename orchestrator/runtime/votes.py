"""A notice as a number, so that ranks can agree on the most urgent one by a maximum. Pure."""

import signal

from orchestrator import clouds
from orchestrator.fabric.promise import NO_RDMA
from orchestrator.runtime.notices import Notice

_TERM = 1000  # above all signal numbers: it leaves the least time
_WORDS = 100  # above all signal numbers as well: a cloud leaves less time than a signal promises
WORDS = (NO_RDMA, *clouds.WORDS)
_OTHER = 1  # SIGHUP's number, which is no notice; stands for words that nobody here knows


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
