"""What a check found. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

# "node": this node is to blame. "storage": the shared file system, unless only this node has
# trouble with it. "job": what was asked for.
Kind = Literal["node", "storage", "job"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that training would fail on, or crawl because of.

    Attributes:
        check: The check that found it; a key of `preflight:` in the job file.
        what: One line, naming the device.
    """

    check: str
    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Problems, and notes on what is odd and stops nobody."""

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(self.problems + other.problems, self.notes + other.notes)

    def to_json(self, *, node: str, at: float) -> dict[str, Any]:
        """Return the content of attempts/N/preflight/node-K.json for the host ``node``."""
        found = [{"check": p.check, "kind": p.kind, "what": p.what} for p in self.problems]
        return {
            "node": node,
            "ok": not self.problems,
            "at": at,
            "problems": found,
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Collector:
    """Gathers problems and notes one after another."""

    _problems: list[Problem] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)

    def problem(self, check: str, what: str, *, kind: Kind = "node") -> None:
        """Add a problem."""
        self._problems.append(Problem(check, kind, one_line(what)))

    def note(self, what: str) -> None:
        """Add a note."""
        self._notes.append(one_line(what))

    def findings(self) -> Findings:
        """Return what was gathered."""
        return Findings(tuple(self._problems), tuple(self._notes))


def note(what: str) -> Findings:
    """Return findings of one note."""
    return Findings(notes=(one_line(what),))


def total(parts: Iterable[Findings]) -> Findings:
    """Return all findings as one."""
    return sum(parts, Findings())


def one_line(text: str) -> str:
    r"""Return ``text`` without line breaks and control characters, at most 300 characters.

    >>> one_line("a\n  b")
    'a b'
    """
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= 300 else words[:297] + "..."
