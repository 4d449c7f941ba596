"""The lists of names in NCCL_IB_HCA and NCCL_SOCKET_IFNAME. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameList:
    """A list as NCCL reads it: `^` takes out, `=` wants whole names; both stand once, in front.

    Attributes:
        entries: As they stand, with port, rail and plane of an HCA.
    """

    excludes: bool
    exact: bool
    entries: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The entries without what follows a colon."""
        return tuple(entry.partition(":")[0] for entry in self.entries)

    def matches(self, name: str) -> bool:
        """Return whether ``name`` is in, or with `^` not taken out."""
        named = (name == one if self.exact else name.startswith(one) for one in self.names)
        return any(named) != self.excludes

    def malformed(self) -> list[str]:
        """Return entries that are no names: empty, with blanks, or with a mark of their own."""
        return [entry for entry in self.entries if not re.fullmatch(r"[^\s=^*]+", entry)]

    def twice(self) -> list[str]:
        """Return entries that stand there more than once."""
        return sorted({entry for entry in self.entries if self.entries.count(entry) > 1})

    def open_ended(self) -> list[str]:
        """Return names that end in a digit and are read as the beginning of others."""
        return [] if self.exact else [name for name in self.names if name[-1:].isdigit()]


def name_list(text: str) -> NameList:
    """Return the list that ``text`` is.

    >>> name_list("^=mlx5_0:1,mlx5_1").names, name_list("ib0").open_ended()
    (('mlx5_0', 'mlx5_1'), ['ib0'])
    """
    excludes = text.startswith("^")
    rest = text.removeprefix("^")
    exact = rest.startswith("=")
    entries = tuple(rest.removeprefix("=").split(","))
    return NameList(excludes, exact, entries)


def worst_prefix(names: Iterable[str]) -> str:
    """Return the name that is most likely to be the beginning of another: not number 0.

    >>> worst_prefix(["mlx5_0", "mlx5_1"])
    'mlx5_1'
    """
    given = list(names)
    return next((name for name in given if not re.search(r"(?<!\d)0$", name)), given[0])
