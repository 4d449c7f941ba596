"""How far a preparation is, as its workers tell."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.tokens.index import ShardEntry
from orchestrator.tokens.pieces import Piece


@dataclass(slots=True)
class Progress:
    """How far a preparation is.

    Attributes:
        unit: What `size` and `done` count.
        size: All there is.
        done: What was read, this time or before.
        before: What an earlier preparation had read.
        tokens: That came of it.
    """

    unit: str
    size: int
    done: int = 0
    before: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)


Tell = Callable[[Progress], None]


class Tally:
    """Adds up what the workers tell, beside what was ``found`` of an earlier preparation."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        found: Mapping[int, tuple[ShardEntry, int] | None],
        tell: Tell,
        *,
        unit: str,
    ) -> None:
        sizes = {piece.number: piece.size for piece in pieces}
        self._at = {number: sizes[number] for number, made in found.items() if made}
        self._tokens = {number: made[0].tokens for number, made in found.items() if made}
        self._tell = tell
        self._progress = Progress(unit, sum(sizes.values()), before=sum(self._at.values()))
        self._say()

    def add(self, piece: Piece, answer: dict[str, Any]) -> None:
        """Take note of what a worker answered on ``piece``, and tell it."""
        done = answer.get("done")
        self._at[piece.number] = piece.size if done else answer["at"]
        self._tokens[piece.number] = (done or answer)["tokens"]
        self._say()

    def _say(self) -> None:
        self._progress.done = sum(self._at.values())
        self._progress.tokens = sum(self._tokens.values())
        self._tell(self._progress)
