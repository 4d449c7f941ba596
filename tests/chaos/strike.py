"""What is written down of a fault when it strikes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .schedule import Fault
from .world import Run, World


@dataclass(slots=True, kw_only=True)
class Strike:
    """One fault as it came to pass. Times are seconds since 1970.

    Attributes:
        at: When it struck; None where it never did.
        until: When its cause was mended.
        attempts: The newest attempt of each run at that time.
        steps: The newest step of each run at that time.
        hosts: Where it struck.
        what: What it struck, or why it did not.
        damaged: The step of the checkpoint that it damaged, if any.
    """

    fault: Fault
    at: float | None = None
    until: float = 0.0
    attempts: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    what: str = ""
    damaged: int | None = None

    def hit(self, world: World, what: str = "", *, hosts: Sequence[str] = ()) -> None:
        """Write down that it strikes now."""
        self.at = time.time()
        self.what = what
        self.hosts = tuple(hosts)
        self.attempts = {run.number: run.attempt for run in world.runs}
        self.steps = {run.number: run.step for run in world.runs}

    @property
    def text(self) -> str:
        """One line for people."""
        fault = self.fault
        run = "cluster" if fault.traits.weather else f"storm-{fault.run + 1}"
        way = f" ({fault.way})" if fault.way else ""
        done = f"attempt {self.attempts.get(fault.run)}, step {self.steps.get(fault.run)}"
        where = f"{fault.moment}, {done}" if self.at else "missed"
        return f"{fault.number:3} {run:8} {fault.kind}{way}: {where}; {self.what}"


Inject = Callable[[World, Run, Strike], None]
