"""How DCP's plan becomes files: who writes what, where it lies, and what `.metadata` says of it.

DCP plans, gathers and loads; only the writing of the files is ours (`shards`). The result is an
ordinary DCP checkpoint.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.tensor import DTensor
from torch.futures import Future

from orchestrator.checkpoint import FileEntry
from orchestrator.errors import CheckpointError
from orchestrator.runtime.saving import ELSEWHERE
from orchestrator.trainer.copying import beside
from orchestrator.trainer.local_copy import LocalCopy
from orchestrator.trainer.shards import Plan, Written, share_out, write_files

Flat = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")


class ShardWriter(FileSystemWriter):
    """A storage writer of DCP's that writes this rank's files itself, while training waits."""

    def __init__(self, folder: Path, *, files: int, local: LocalCopy | None = None) -> None:
        super().__init__(folder, thread_count=files)
        self.known: dict[str, FileEntry] = {}
        self._local = local

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the items of ``plan``."""
        rows = rows_of(plan, files=self.thread_count)
        plans = [Plan(row.name, [_piece(planner, item) for item in row.items]) for row in rows]
        nbytes = sum(item.tensor_storage_size() or 0 for item in plan.items)
        with beside(self._local, Path(self.path), nbytes=nbytes) as copy:
            written = write_files(Path(self.path), plans, threads=self.thread_count, copy=copy)
        self.known |= {file.name: file.entry for file in written}
        done: Future[list[WriteResult]] = Future()
        done.set_result(results(rows, written))
        return done


@dataclass(frozen=True, slots=True)
class Row:
    """The items of DCP's plan that one file holds."""

    name: str
    items: Sequence[WriteItem]


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan that all ranks agreed on. It holds as long as the state keeps its `form`.

    Attributes:
        rows: What this rank writes.
        metadata: What `.metadata` will say, but for where things lie. Rank 0 only.
        form: Of this rank's state.
    """

    rows: Sequence[Row]
    metadata: Metadata | None
    form: dict[str, object]


def flatten(state: dict[str, Any]) -> Flat:
    """Return the nested ``state`` with one key for each tensor and object, as DCP does."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(state)
    return dict(planner.state_dict)


def settle_plan(state: dict[str, Any], group: dist.ProcessGroup, *, files: int) -> Settled:
    """Return who writes what of ``state``. Collective; looks at shapes alone.

    Raises:
        CheckpointException: It cannot be planned; on all ranks.
    """
    wrapper = _DistWrapper(group, True, 0)
    planner = DefaultSavePlanner()
    metadata: list[Metadata] = []

    def local() -> SavePlan:
        planner.set_up_planner(state, is_coordinator=wrapper.is_coordinator)
        return planner.create_local_plan()

    def together(plans: list[SavePlan]) -> list[SavePlan]:
        settled, found = planner.create_global_plan(plans)
        metadata.append(found)
        return _dcp_writer(Path()).prepare_global_plan(settled)

    mine = planner.finish_plan(wrapper.reduce_scatter("plan", local, together))
    rows = rows_of(mine, files=files)
    return Settled(rows, metadata[0] if metadata else None, form_of(dict(planner.state_dict)))


def form_of(flat: Flat) -> dict[str, object]:
    """Return what must not change for a plan to hold: names, shapes, types and placements."""
    return {name: _form(value) for name, value in flat.items()}


def rows_of(plan: SavePlan, *, files: int) -> list[Row]:
    """Return the files of this rank: `__<rank>_<n>.distcp`, of about equal size."""
    sized = [(item.tensor_storage_size() or 0, item) for item in plan.items]
    shares = share_out(sized, shares=files)
    prefix = plan.storage_data.prefix
    return [Row(f"{prefix}{number}.distcp", items) for number, items in enumerate(shares)]


def results(rows: Sequence[Row], written: Sequence[Written]) -> list[WriteResult]:
    """Return where each item lies, for `.metadata`."""
    return [
        WriteResult(item.index, length, _StorageInfo(file.name, offset, length))
        for row, file in zip(rows, written, strict=True)
        for item, (offset, length) in zip(row.items, file.spans, strict=True)
    ]


def finish(
    folder: Path,
    settled: Settled,
    write: Callable[[], list[WriteResult]],
    group: dist.ProcessGroup,
) -> None:
    """Write this rank's files by ``write``, then `.metadata` on rank 0. Collective.

    Raises:
        CheckpointError: It failed on some rank; on all ranks, in the words of each one.
    """
    own: list[BaseException] = []

    def conclude(found: list[list[WriteResult]]) -> None:
        assert settled.metadata is not None
        _dcp_writer(folder).finish(settled.metadata, found)

    try:
        _DistWrapper(group, True, 0).all_reduce(
            "write", _noting(own, write), _noting(own, conclude)
        )
    except CheckpointException:
        # What it says is a traceback of each rank; whoever failed knows better.
        raise CheckpointError(_words(own[0]) if own else ELSEWHERE) from None


def local_tensor(item: WriteItem, value: object) -> torch.Tensor:
    """Return the memory of this rank that ``item`` is about.

    Raises:
        ValueError: The state has changed since it was planned, or is of a kind that is not known.
    """
    tensor = value.to_local() if isinstance(value, DTensor) else value
    assert item.tensor_data is not None
    wanted = item.tensor_data.chunk.sizes
    if not isinstance(tensor, torch.Tensor) or tensor.shape != wanted:
        found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{item.index.fqn}: {tuple(wanted)} was planned, {found} is there")
    return tensor.detach()


def is_object(item: WriteItem) -> bool:
    """Return whether ``item`` is no tensor."""
    return item.type == WriteItemType.BYTE_IO


def object_bytes(value: object) -> bytes:
    """Return ``value`` as DCP stores what is no tensor."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _noting(problems: list[BaseException], work: Callable[P, R]) -> Callable[P, R]:
    """Return ``work``, which adds to ``problems`` what it raises."""

    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except BaseException as problem:
            problems.append(problem)
            raise

    return noted


def _words(problem: BaseException) -> str:
    text = str(problem)
    return text if isinstance(problem, CheckpointError) else f"{type(problem).__name__}: {text}"


def _dcp_writer(folder: Path) -> FileSystemWriter:
    writer = FileSystemWriter(folder)
    writer.set_up_storage_writer(True)
    return writer


def _piece(planner: SavePlanner, item: WriteItem) -> Callable[[], torch.Tensor | bytes]:
    def make() -> torch.Tensor | bytes:
        data = planner.resolve_data(item)
        return data.getvalue() if isinstance(data, io.BytesIO) else data

    return make


def _form(value: object) -> object:
    if isinstance(value, DTensor):
        return (tuple(value.shape), value.dtype, value.placements)
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    return None
