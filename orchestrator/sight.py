"""A run as it is seen: the value that observation hands on. Pure."""

from dataclasses import dataclass

from orchestrator.decide import History, Observation, Policy
from orchestrator.layout import RunLayout
from orchestrator.plan import LaunchPlan


@dataclass(frozen=True, slots=True)
class Sight:
    """A run and all that `decide` needs to know of it."""

    layout: RunLayout
    plan: LaunchPlan
    seen: Observation
    past: History

    @property
    def policy(self) -> Policy:
        """The run's own policy."""
        return Policy(max_no_progress=self.plan.max_no_progress, delay_s=self.plan.delay_s)
