"""Find what patterns know in lines. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.evidence.pattern import Pattern
from orchestrator.rundir.attempt import Finding

# A program that says the same a million times is heard this often for each pattern.
_PER_KIND = 16
_LINE = 600


def lines(text: str) -> list[str]:
    r"""Return the lines of ``text``; only \n ends one, so that nothing can pretend to begin one."""
    return text.split("\n")


def findings(
    text: Iterable[str],
    patterns: Sequence[Pattern],
    *,
    rank: int | None = None,
    node: str = "",
    file: str = "",
) -> list[Finding]:
    """Return what ``patterns`` know, each line by the first that matches, in order.

    Args:
        text: Lines.
        patterns: The more telling ones first.
        rank: Whose log it is, where the line does not say.
        node: Where it was written, where the line does not say.
        file: Where the lines stand.
    """
    found: list[Finding] = []
    heard: dict[str, int] = {}
    for line in text:
        finding = next((f for p in patterns if (f := p.finding(line[:4096]))), None)
        if finding is None or heard.get(finding.kind, 0) >= _PER_KIND:
            continue
        heard[finding.kind] = heard.get(finding.kind, 0) + 1
        found.append(
            replace(
                finding,
                rank=finding.rank if finding.rank is not None else rank,
                node=finding.node or node,
                file=file,
                line=line[:_LINE] if file else "",
            )
        )
    return found
