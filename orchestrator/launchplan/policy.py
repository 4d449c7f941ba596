"""How a run is brought back: budgets, delays, bad nodes and sizes, settled by the plan. Pure."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often, how soon and where a run is brought back.

    Attributes:
        max_no_progress: Attempts in a row that the program may end without a newer checkpoint.
        delay_s: Seconds before the second restart in a row; doubled by each further one.
        max_delay_s: The most that the delay grows to.
        budgets: Restarts in a row without a newer checkpoint by the words of `classify.Cause`;
            a cause that is not named has no budget of its own.
        on_gpu_memory: What answers a GPU that is out of memory.
        micro_batch: The job file's micro-batch; 1 where there is none.
        exclude_after: How often a node must be suspected before it is left out. Evidence that
            speaks against the node alone (ECC, a failed node check) counts at once.
        forget_s: How long a suspicion lasts, in seconds.
        let_go_s: How long a job that finds no nodes waits for others than the suspected ones.
        max_excluded: The most nodes that are left out at a time.
        sizes: The node counts that the run may have, largest first; one where it is not elastic.
        patience_s: How long the run waits for nodes before it takes fewer, in seconds.
        require_rdma: Whether an attempt whose network is less than the site promises is stopped.
        seed: Makes the jitter of the delay differ between runs.
    """

    max_no_progress: int = 3
    delay_s: float = 15.0
    max_delay_s: float = 900.0
    budgets: dict[str, int] = field(default_factory=dict)
    on_gpu_memory: Literal["stop", "smaller_micro_batch"] = "stop"
    micro_batch: int = 1
    exclude_after: int = 2
    forget_s: float = 86400.0
    let_go_s: float = 600.0
    max_excluded: int = 4
    sizes: tuple[int, ...] = ()
    patience_s: float = 3600.0
    require_rdma: bool = False
    seed: str = ""
