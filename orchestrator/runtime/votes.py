"""A notice as a number, so that ranks can agree on the most urgent one by a maximum. Pure."""

import signal

from orchestrator.runtime.notices import Notice

_TERM = 1000  # above all signal numbers: it leaves the least time
_OTHER = 1  # SIGHUP's number, which is no notice; stands for words that are not signals


def encode(notice: Notice | None) -> int:
    """Return 0 for no notice, and the more the more urgent it is."""
    if notice is None:
        return 0
    if notice.urgent:
        return _TERM
    return int(getattr(signal, f"SIG{notice.signal}", _OTHER))


def decode(number: int) -> Notice | None:
    """Return the notice of another rank that voted ``number``."""
    if number == 0:
        return None
    if number == _TERM:
        return Notice("TERM", 0.0, "vote")
    name = "NOTICE" if number == _OTHER else signal.Signals(number).name.removeprefix("SIG")
    return Notice(name, 0.0, "vote")
