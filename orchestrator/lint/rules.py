"""All rules, and what they say together. Pure."""

from orchestrator.lint import (
    containers,
    gpudirect,
    infiniband,
    libfabric,
    limits,
    names,
    network,
    requests,
    secret,
    storage,
    training,
)
from orchestrator.lint.case import Case
from orchestrator.lint.finding import Finding, in_order
from orchestrator.lint.rule import Rule

_THEMES = (
    names, gpudirect, infiniband, network, libfabric, training, requests, limits, storage,
    containers, secret,
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(
    found for theme in _THEMES for found in vars(theme).values() if isinstance(found, Rule)
)


def lint(case: Case) -> tuple[Finding, ...]:
    """Return what the rules say of ``case``, by file, the worst first."""
    return in_order(finding for one in RULES for finding in one.findings(case))
