"""The duty that asks one source and turns what it says into notices."""

import time
from collections.abc import Callable
from typing import Protocol

from orchestrator.monitor.cloud.reclaim import Reclaim
from orchestrator.monitor.duty import say
from orchestrator.monitor.notes import Notes


class Source(Protocol):
    """One thing that a cloud tells a machine."""

    @property
    def every_s(self) -> float:
        """Seconds between two questions."""

    def look(self) -> list[Reclaim]:
        """Return what the cloud says now."""


class ReclaimWatch:
    """Asks a source; says what is new, and writes a notice down when its time has come."""

    def __init__(
        self,
        source: Source,
        notes: Notes,
        *,
        lead_s: float,
        heeded: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.every_s = source.every_s
        self.name = type(source).__name__
        self._source = source
        self._notes = notes
        self._lead_s = lead_s + source.every_s  # rather one question too early than too late
        self._heeded = heeded
        self._clock = clock
        self._said: set[str] = set()
        self._posted: set[str] = set()
        self._older: set[str] | None = None  # vague ones that stood before this attempt

    def tick(self) -> None:
        """Ask once.

        Raises:
            MetadataError: No answer of use.
            OSError: A notice could not be written down; the next tick tries again.
        """
        found = self._source.look()
        vague = {reclaim.word for reclaim in found if reclaim.vague}
        self._older = vague if self._older is None else self._older & vague
        for reclaim in found:
            self._announce(reclaim)
            if self._counts(reclaim):
                self._notes.post(reclaim, at=self._clock())
                self._posted.add(reclaim.word)

    def _announce(self, reclaim: Reclaim) -> None:
        if reclaim.what not in self._said:
            self._said.add(reclaim.what)
            say(reclaim.what)

    def _counts(self, reclaim: Reclaim) -> bool:
        if not self._heeded or reclaim.word in self._posted:
            return False
        if reclaim.vague and reclaim.word in (self._older or ()):
            return False
        return reclaim.due(now=self._clock(), lead_s=self._lead_s)
