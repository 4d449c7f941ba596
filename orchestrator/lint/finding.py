"""One thing that lint says about one value. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["error", "warn", "info"]
# `error` does harm for certain, `warn` very likely or needlessly, `info` is good to know.
LEVELS: tuple[Level, ...] = ("error", "warn", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with a value, why, and what to do.

    Attributes:
        file: Where the value stands: the path of a file, or the name of a shipped profile.
        key: Dotted, as it stands in the file.
        value: As it was given; "" where nothing was.
        since: The NCCL version from which on it holds; None where no version matters.
        source: Who says so.
    """

    rule: str
    level: Level
    file: str
    key: str
    value: str
    why: str
    do: str
    since: str | None
    source: str

    @property
    def given(self) -> str:
        """The key with its value."""
        return f"{self.key}={self.value}" if self.value else self.key

    @property
    def reason(self) -> str:
        """Why, with the version from which on it holds."""
        return f"{self.why} (NCCL {self.since} and later)" if self.since else self.why

    def line(self) -> str:
        """Return it as one line, for notes."""
        return f"{self.level}: {self.text()}"

    def text(self) -> str:
        """Return the same without its level."""
        return f"{self.file}: {self.given}: {self.reason}; {self.do} [{self.rule}]"

    def to_json(self) -> dict[str, str | None]:
        """Return it as JSON's types."""
        return asdict(self)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, by file as they come, the worst of a file first."""
    once = list(dict.fromkeys(findings))
    files = list(dict.fromkeys(one.file for one in once))
    return tuple(sorted(once, key=lambda one: (files.index(one.file), LEVELS.index(one.level))))
