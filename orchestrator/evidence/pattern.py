"""What a pattern is. Pure."""

import re
from dataclasses import dataclass

from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause

_WIDTH = 300


@dataclass(frozen=True, slots=True)
class Pattern:
    """A message of a program, and what it means.

    Attributes:
        kind: Its name.
        regex: Its groups fill ``what``; a group `node` or `rank` is whom it speaks of,
            `peer` the other end of a connection.
        what: One line; "" for the message itself.
        advice: What to do about it.
        suspect: Whether it speaks against the node.
    """

    kind: str
    cause: Cause
    weight: Weight
    regex: re.Pattern[str]
    what: str = ""
    advice: str = ""
    suspect: bool = False

    def finding(self, text: str) -> Finding | None:
        """Return what ``text`` says by this pattern; None if it does not match."""
        match = self.regex.search(text)
        if match is None:
            return None
        groups = {name: (value or "?").strip() for name, value in match.groupdict().items()}
        rank = groups.get("rank", "")
        return Finding(
            kind=self.kind,
            cause=self.cause,
            weight=self.weight,
            what=short(self.what.format(**groups) if self.what else text),
            advice=self.advice,
            rank=int(rank) if rank.isdigit() and len(rank) < 9 else None,
            node=groups.get("node", ""),
            suspect=self.suspect,
            peer=match.groupdict().get("peer") or "",
        )


def make(
    kind: str,
    cause: Cause,
    weight: Weight,
    regex: str,
    what: str = "",
    *,
    advice: str = "",
    suspect: bool = False,
) -> Pattern:
    """Return a pattern from its regular expression."""
    return Pattern(kind, cause, weight, re.compile(regex), what, advice, suspect)


def short(text: str) -> str:
    """Return the first line of ``text``, printable and not too long for a sentence."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    clean = "".join(letter if letter.isprintable() else "?" for letter in line)
    return clean if len(clean) <= _WIDTH else f"{clean[:_WIDTH]}..."
