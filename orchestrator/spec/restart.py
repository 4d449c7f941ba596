"""How a run is brought back: the parts `restart:` and `elastic:` of a job file."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from orchestrator.keys.counts import Nodes, Times, Waits
from orchestrator.keys.fields import Strict

Budget = Annotated[int, Field(ge=0, le=10_000, strict=True)] | None


class BudgetSpec(Strict):
    """Restarts in a row without a newer checkpoint, for each cause; null for as many as it takes.

    Preemptions, notices and lost nodes have none: they say nothing about the program.
    """

    worker_error: Budget = 3
    hang: Budget = 3
    time_limit: Budget = 3
    gone: Budget = 3
    network_error: Budget = 5
    gpu_failure: Budget = 5
    launch_failure: Budget = 5
    disk_full: Budget = 3
    node_check: Budget = 10
    node_failure: Budget = None
    preempted: Budget = None

    def by_cause(self) -> dict[str, int]:
        """Return the budgets by the words of `orchestrator.judging.classify.Cause`."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        words = {"gpu_failure": "GPU failure", "gone": "gone without a word"}
        return {
            words.get(name, name.replace("_", " ")): value
            for name, value in given.items()
            if value is not None
        }


class BadNodeSpec(Strict):
    """When a node is left out of the next attempt.

    Evidence that speaks against the node alone, such as ECC errors or a failed node check, counts
    at once; everything else from the ``after``-th time. 0 nodes at most leaves nobody out. A job
    that has waited ``patience_s`` for other nodes takes those that are only suspected.
    """

    after: Times = 2
    forget_s: Waits = 86_400
    patience_s: Waits = 600
    at_most: Annotated[int, Field(ge=0, le=1000, strict=True)] = 4


class RestartSpec(Strict):
    """How often, how soon and where fsdpq brings the run back.

    Every budget starts anew with each newer checkpoint, so a run that gets on is never given up.
    The delay doubles with each restart in a row that brought no newer checkpoint.
    """

    max_no_progress: Times = 3
    delay_s: Waits = 15
    max_delay_s: Waits = 900
    budgets: BudgetSpec = BudgetSpec()
    on_gpu_memory: Literal["stop", "smaller_micro_batch"] = "stop"
    bad_nodes: BadNodeSpec = BadNodeSpec()

    @model_validator(mode="after")
    def _delays(self) -> "RestartSpec":
        if self.max_delay_s < self.delay_s:
            raise ValueError(
                f"max_delay_s is {self.max_delay_s} and delay_s {self.delay_s}: the most that the"
                " delay grows to cannot be less than the first; raise max_delay_s"
            )
        return self


class ElasticSpec(Strict):
    """Go on with fewer nodes when so many cannot be had; grow back at the next restart."""

    min_nodes: Nodes
    patience_s: Waits = 3600
