"""What changed in the environment of a run from one attempt to the next. Pure.

Read from what `orchestrator.recorder` left, which may be missing, torn or of any content.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Said first; the others follow by name.
_FIRST = ("torch", "triton", "transformers", "numpy", "fsdpq")
_SAID = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an attempt ran with.

    Attributes:
        packages: Installed distributions, name to version; None where the list is missing.
        fingerprint: The name of that list; two with the same have the same packages.
        facts: Single values by what they are called in a sentence; None where unknown.
        modules: Loaded modules, such as cuda/12.4.
        code: What the live files were at; empty where the run keeps its own copy.
    """

    attempt: int
    fingerprint: str
    packages: Mapping[str, str] | None
    facts: Mapping[str, str | None]
    modules: tuple[str, ...]
    code: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changed between two attempts, each as one phrase."""

    before: int
    after: int
    what: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON's types."""
        return {"from": self.before, "to": self.after, "changes": list(self.what)}

    def __str__(self) -> str:
        """Return the change as one line."""
        said = ", ".join(self.what)
        return f"environment changed between attempts {self.before} and {self.after}: {said}"


def parse(
    attempt: int, record: Mapping[str, Any], packages: Mapping[str, str] | None
) -> Environment:
    """Return the environment that ``record`` tells of."""
    python = _mapping(record.get("python"))
    code = _mapping(record.get("code"))
    modules = record.get("modules")
    return Environment(
        attempt=attempt,
        fingerprint=_text(record.get("packages")) or "",
        packages=packages,
        facts={
            "Python": _text(python.get("version")),
            "Python's folder": _text(python.get("prefix")),
            "container image": _text(record.get("container")),
            "NVIDIA driver": _text(record.get("driver")),
        },
        modules=tuple(str(name) for name in modules) if isinstance(modules, list) else (),
        code={name: _text(value) for name, value in code.items()},
    )


def parse_packages(text: str) -> dict[str, str]:
    """Return the list of packages in ``text``, a line `name==version` each.

    >>> parse_packages("torch==2.13.0")
    {'torch': '2.13.0'}
    """
    pairs = (line.partition("==") for line in text.splitlines())
    return {name: version for name, equals, version in pairs if equals}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if value.isprintable() else ascii(value)


def changes(environments: Sequence[Environment]) -> tuple[Change, ...]:
    """Return what changed, from each attempt with a record to the next one that has one."""
    found = []
    for before, after in pairwise(environments):
        if what := tuple(_changes(before, after)):
            found.append(Change(before=before.attempt, after=after.attempt, what=what))
    return tuple(found)


def _changes(before: Environment, after: Environment) -> Iterator[str]:
    for name, old in before.facts.items():
        new = after.facts.get(name)
        # A container appears or goes; of the rest nothing is known where nothing was found.
        if old != new and (name == "container image" or (old and new)):
            yield f"{name} {old or 'none'} -> {new or 'none'}"
    yield from _packages(before, after)
    yield from _modules(before.modules, after.modules)
    yield from _code(before.code, after.code)


def _packages(before: Environment, after: Environment) -> Iterator[str]:
    if before.fingerprint == after.fingerprint or not (before.fingerprint and after.fingerprint):
        return
    if before.packages is None or after.packages is None:
        yield "installed packages"
        return
    names = before.packages.keys() | after.packages.keys()
    differ = [n for n in names if before.packages.get(n) != after.packages.get(n)]
    for name in sorted(differ, key=_rank)[:_SAID]:
        old, new = (side.get(name, "none") for side in (before.packages, after.packages))
        yield f"{name} {old} -> {new}"
    if len(differ) > _SAID:
        yield f"{len(differ) - _SAID} more packages"


def _rank(name: str) -> tuple[int, str]:
    """Return where ``name`` stands in a list: what matters to training comes first."""
    if name in _FIRST:
        return _FIRST.index(name), name
    return (len(_FIRST) if name.startswith("nvidia-") else len(_FIRST) + 1), name


def _modules(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    old = {name.partition("/")[0]: name for name in before if name not in after}
    new = {name.partition("/")[0]: name for name in after if name not in before}
    for name in sorted(old.keys() | new.keys()):
        yield f"module {old.get(name, 'none')} -> {new.get(name, 'none')}"


def _code(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> Iterator[str]:
    """Yield how the live files differ, as far as both attempts could tell."""

    def differ(name: str) -> bool:
        old, new = before.get(name), after.get(name)
        return bool(old and new) and old != new

    if differ("commit"):
        yield f"live code {str(before['commit'])[:12]} -> {str(after['commit'])[:12]}"
    elif differ("difference") or differ("script"):
        yield "live code edited"


__all__ = ["Change", "Environment", "changes", "parse", "parse_packages"]
