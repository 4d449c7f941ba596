"""A rule: when it speaks, how loud, why, and what to do. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.lint.case import Case, Place
from orchestrator.lint.finding import Finding, Level
from orchestrator.lint.nccl_variables import version_of
from orchestrator.redact import redacted

GUIDE = "NCCL user guide 2.30, Environment Variables"
NCCL = "NVIDIA/nccl sources, 2.18.6 to 2.30.7"
# A remark on what a source of the site's own wants is no call to go against it.
_LEAVE = "leave it as the site has it, unless measurements there say otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a rule speaks; what it leaves out is as the rule says."""

    at: Place
    why: str | None = None
    do: str | None = None
    level: Level | None = None


Look = Callable[[Case], Iterable[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        since: The NCCL version from which on it holds.
        advice: Whether it says what is better, rather than what does not work. A site may know
            better: a warning is a remark where a source of its own gives the value.
    """

    name: str
    level: Level
    why: str
    do: str
    source: str
    since: str | None
    advice: bool
    look: Look

    def findings(self, case: Case) -> Iterator[Finding]:
        """Yield what the rule says of ``case``."""
        version = case.around.version
        if self.since and version and version < version_of(self.since):
            return
        for hit in self.look(case):
            yield self._finding(hit)

    def _finding(self, hit: Hit) -> Finding:
        level, why = hit.level or self.level, hit.why or self.why
        if self.advice and level == "warn" and hit.at.vouched:
            level, why = "info", f"{why}; the site itself wants it so: {hit.at.vouched}"
        do = hit.do or self.do
        if level == "info" and hit.at.vouched and do.startswith("remove it"):
            do = _LEAVE
        return Finding(
            rule=self.name,
            level=level,
            file=hit.at.file,
            key=hit.at.key,
            value=redacted(hit.at.value),
            why=why,
            do=do,
            since=self.since,
            source=self.source,
        )


def rule(
    level: Level,
    *,
    why: str,
    do: str,
    source: str,
    since: str | None = None,
    advice: bool = False,
) -> Callable[[Look], Rule]:
    """Make a rule of the function below, which has its name and yields where it speaks."""

    def made(look: Look) -> Rule:
        name = getattr(look, "__name__", "").replace("_", "-")
        return Rule(
            name=name,
            level=level,
            why=why,
            do=do,
            source=source,
            since=since,
            advice=advice,
            look=look,
        )

    return made


def number(text: str) -> int | None:
    """Return a whole number as NCCL reads it, decimal or 0x...; None where it is none.

    >>> number("22"), number(" 0x10"), number("-1"), number("22s"), number("")
    (22, 16, -1, None, None)
    """
    try:
        return int(text, 0) if text.strip().lower().startswith("0x") else int(text, 10)
    except ValueError:
        return None
