"""Names inside the checkpoint directory. Pure.

Only the exact form `step-<number>` is a checkpoint: `step-7.tmp-2`, `step-007`, `old-step-7` and
`latest` are not, and numbers are compared as numbers (step-1000 is newer than step-500).
"""

import re
from dataclasses import dataclass
from typing import Literal

MANIFEST = "manifest.json"
DCP_METADATA = ".metadata"
LATEST = "LATEST"
QUARANTINE_REASON = "QUARANTINE.txt"

_NUMBER = "(?:0|[1-9][0-9]*)"
_PUBLISHED = re.compile(f"step-(?P<step>{_NUMBER})")
_SCRATCH = re.compile(
    f"step-(?P<step>{_NUMBER})\\.(?P<kind>tmp|old|quarantined)-(?P<attempt>{_NUMBER})(?:-{_NUMBER})?"
)

Kind = Literal["tmp", "old", "quarantined"]


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory that is not a checkpoint: being written, being deleted, or set aside."""

    step: int
    kind: str
    attempt: int


def published_name(step: int) -> str:
    """Return the name of the published checkpoint of ``step``."""
    return f"step-{step}"


def scratch_name(step: int, *, kind: Kind, attempt: int, copy: int = 0) -> str:
    """Return the name of a directory of ``attempt`` that is no checkpoint (yet, or any more)."""
    return f"step-{step}.{kind}-{attempt}" + (f"-{copy}" if copy else "")


def published_step(name: str) -> int | None:
    """Return the step of a published checkpoint called ``name``, None for any other name.

    >>> published_step("step-1000"), published_step("step-1000.tmp-2"), published_step("step-007")
    (1000, None, None)
    """
    found = _PUBLISHED.fullmatch(name)
    return int(found["step"]) if found else None


def parse_scratch(name: str) -> Scratch | None:
    """Return what the scratch directory called ``name`` is, None for any other name.

    >>> parse_scratch("step-30.quarantined-2-1")
    Scratch(step=30, kind='quarantined', attempt=2)
    """
    found = _SCRATCH.fullmatch(name)
    if found is None:
        return None
    return Scratch(int(found["step"]), found["kind"], int(found["attempt"]))
