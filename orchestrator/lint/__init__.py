"""What looks wrong in a site profile or a job file, why, and what to do.

Rules are small functions by theme; each has its reason, the NCCL version from which on it holds,
and its source. Nothing that a user writes is changed for them.
"""

from orchestrator.lint.case import Case, Surroundings, of_job, of_profile
from orchestrator.lint.finding import LEVELS, Finding, in_order
from orchestrator.lint.nccl_variables import version_of
from orchestrator.lint.rules import RULES, lint

__all__ = [
    "LEVELS",
    "RULES",
    "Case",
    "Finding",
    "Surroundings",
    "in_order",
    "lint",
    "of_job",
    "of_profile",
    "version_of",
]
