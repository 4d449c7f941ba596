"""A run as it is seen: the value that observation hands on. Pure."""

from dataclasses import dataclass

from orchestrator.decide import History, Observation
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.layout import RunLayout


@dataclass(frozen=True, slots=True)
class Sight:
    """A run and all that `decide` needs to know of it.

    Attributes:
        read: Whether the run directory was read, or only glanced at: nothing is to be done.
    """

    layout: RunLayout
    plan: LaunchPlan
    seen: Observation
    past: History
    read: bool = True

    @property
    def policy(self) -> Policy:
        """The run's own policy."""
        return self.plan.policy
