"""Agreement between ranks over torch.distributed: the only module of the runtime with torch.

All of it runs on a gloo group of its own: votes must neither wait behind NCCL kernels nor share a
group with checkpoint traffic, which fails in odd ways under concurrency.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.errors import RunError

# Hashing a large checkpoint takes minutes, and the others wait in a broadcast meanwhile.
_GROUP_TIMEOUT = timedelta(hours=1)


class VoteError(RunError):
    """The ranks did not come together in time, or one of them is gone."""


class Ranks:
    """The ranks of the default process group. Making one is a collective call.

    Each has a group of its own, so one may be used by another thread.
    """

    def __init__(self, *, timeout: timedelta = _GROUP_TIMEOUT) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        """Return the largest of each value over all ranks.

        Raises:
            VoteError: Not all ranks took part within ``timeout_s`` seconds.
        """
        ballot = torch.tensor(values, dtype=torch.int64)
        try:
            work = dist.all_reduce(ballot, dist.ReduceOp.MAX, self._group, async_op=True)
            if not work.wait(timedelta(seconds=timeout_s)):
                raise VoteError(f"the ranks did not agree within {timeout_s:g} s")
        except RuntimeError as problem:
            raise VoteError(
                f"the ranks did not agree within {timeout_s:g} s, or one is gone: {problem}"
            ) from None
        return [int(value) for value in ballot.tolist()]

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's ``value`` on all ranks.

        Raises:
            VoteError: A rank is gone.
        """
        box = [value]
        try:
            dist.broadcast_object_list(box, src=0, group=self._group)
        except RuntimeError as problem:
            raise VoteError(f"rank 0 cannot be heard: {problem}") from None
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return each rank's ``value``, in rank order, on rank 0; elsewhere an empty list.

        Raises:
            VoteError: A rank is gone.
        """
        box: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        try:
            dist.gather_object(value, box, dst=0, group=self._group)
        except RuntimeError as problem:
            raise VoteError(f"not all ranks can be heard: {problem}") from None
        return box or []


def is_ready() -> bool:
    """Return whether torch.distributed has been initialised."""
    return dist.is_available() and dist.is_initialized()
