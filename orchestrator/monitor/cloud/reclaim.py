"""A cloud's word that it will take this machine away. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """What a metadata service says of the end of this machine.

    Attributes:
        word: What the notice files call it; one of `clouds.WORDS`.
        what: The same in a line for people.
        ends_at: Not before this time, in seconds since 1970; None where the cloud gives none.
        planned: It may be announced minutes to days before, so that training goes on until its
            time is near. A spot reclaim is heeded at once, whatever the two clocks say.
        vague: It may stand for an hour and says no time. A job that is stopped for it, put back
            and given the same node would stop for it again and again. So it counts only for the
            attempt that saw it come.
    """

    word: str
    what: str
    ends_at: float | None = None
    planned: bool = False
    vague: bool = False

    def due(self, *, now: float, lead_s: float) -> bool:
        """Return whether the end is near enough to stop for it: ``lead_s`` seconds if planned."""
        return not self.planned or self.ends_at is None or self.ends_at - now <= lead_s


def iso_time(text: object) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, None if it is none.

    >>> iso_time("2017-09-18T08:22:00Z"), iso_time("soon")
    (1505722920.0, None)
    """
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if found is None:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
