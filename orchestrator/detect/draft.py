"""A site profile in the making: values, each with how it was found. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a profile.

    Attributes:
        path: Its keys from the outside in.
        source: The command or the file that showed it, and what it showed.
        confidence: `low` for a guess; None for what was seen.
    """

    path: Path
    value: Any
    source: str
    confidence: str | None = None


@dataclass(slots=True)
class Draft:
    """Facts in the order they were found, and notes."""

    facts: list[Fact] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, path: Path, value: Any, source: str, confidence: str | None = None) -> None:
        """Add a fact; None says nothing. A later one goes before an earlier one of its path."""
        if value is None:
            return
        self.facts = [fact for fact in self.facts if fact.path[: len(path)] != path]
        self.facts.append(Fact(path, value, source, confidence))

    def note(self, text: str) -> None:
        """Add what a reader should know and no key has a place for."""
        self.notes.append(text)

    def data(self) -> dict[str, Any]:
        """Return the values as the YAML file has them."""
        found: dict[str, Any] = {}
        for fact in self.facts:
            inner = found
            for key in fact.path[:-1]:
                inner = inner.setdefault(key, {})
            inner[fact.path[-1]] = fact.value
        return found

    def evidence(self) -> dict[str, Any]:
        """Return the evidence by dotted key: for a group what is true of most, then the rest."""
        groups: dict[Path, list[Fact]] = {}
        for fact in self.facts:
            depth = 2 if fact.path[0] in _NAMED else 1
            groups.setdefault(fact.path[:depth], []).append(fact)
        folded = (pair for path, facts in groups.items() for pair in _folded(path, facts))
        return {".".join(path): _entry(found) for path, found in folded}


# Keys with names of the site below them.
_NAMED = frozenset({"partitions", "qos", "storage"})
_Found = tuple[str, str | None]


def _found(fact: Fact) -> _Found:
    return fact.source, fact.confidence


def _entry(found: _Found) -> object:
    source, confidence = found
    return {"source": source, "confidence": confidence} if confidence else source


def _folded(path: Path, facts: list[Fact]) -> Iterator[tuple[Path, _Found]]:
    """Yield the evidence that most of ``facts`` share for ``path``, and that of the others."""
    (most, times), *_ = Counter(map(_found, facts)).most_common(1)
    shared = most if times > 1 or len(facts) == 1 else None
    if shared is not None:
        yield path, shared
    yield from ((fact.path, _found(fact)) for fact in facts if _found(fact) != shared)


__all__ = ["Draft", "Fact"]
