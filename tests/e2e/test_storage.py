"""Files in DCP's format, the memory for copies, and what a node has left. One process."""

from __future__ import annotations

import errno
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save  # noqa: E402

from orchestrator.trainer.host_memory import HostMemory, lay_out  # noqa: E402
from orchestrator.trainer.memory_left import available, lack  # noqa: E402
from orchestrator.trainer.shards import Plan, Sink, share_out, write_file, write_files  # noqa: E402
from orchestrator.trainer.step_copy import FileCopy  # noqa: E402
from orchestrator.trainer.storage import ShardWriter  # noqa: E402

pytestmark = pytest.mark.e2e

GIB = 1 << 30


def dcp(function: Any, *args: Any, **options: Any) -> None:
    with warnings.catch_warnings():  # it says that it works in a single process
        warnings.simplefilter("ignore")
        function(*args, **options)


def make_state() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "wide": torch.randn(100, 30),
        "view": torch.randn(10, 10)[2:5, 3:],
        "half": torch.randn(7).to(torch.bfloat16),
        "whole": torch.arange(5),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "step": 17,
        "text": {"deep": "words"},
    }


@pytest.mark.parametrize("files", [1, 3, 50])
def test_dcp_reads_what_is_written(tmp_path: Path, files: int) -> None:
    state = make_state()
    writer = ShardWriter(tmp_path, files=files)
    dcp(save, state, storage_writer=writer)
    empty = {
        name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
        for name, value in state.items()
    }
    empty["text"] = {"deep": ""}
    dcp(load, empty, checkpoint_id=tmp_path)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(empty[name], value), name
        else:
            assert empty[name] == value


def test_files_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, files=3)
    dcp(save, make_state(), storage_writer=writer)
    shards = sorted(path.name for path in tmp_path.glob("*.distcp"))
    assert sorted(writer.known) == shards
    assert len(shards) == 3
    for name, entry in writer.known.items():
        data = (tmp_path / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())


class FullDisk:
    """Takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self._room = room

    def write(self, data: memoryview) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("bad", range(4))
def test_no_thread_loses_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """DCP's own writer does: only the error of its first thread counts."""
    plain = Sink.__init__

    def make(self: Sink, path: Path, copy: FileCopy | None, *, direct: bool) -> None:
        plain(self, path, copy, direct=direct)
        if path.name == f"file-{bad}":
            self._file.close()
            self._file = FullDisk(1000)  # type: ignore[assignment]

    monkeypatch.setattr(Sink, "__init__", make)
    plans = [Plan(f"file-{n}", [lambda: torch.zeros(10_000)]) for n in range(4)]
    with pytest.raises(OSError, match="No space left on device"):
        write_files(tmp_path, plans, threads=4)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path, Plan("file", [lambda: b"new"]))


def test_shares_are_about_equal() -> None:
    items = [(size, size) for size in (70, 10, 10, 20, 30, 0, 0, 0)]
    shares = share_out(items, shares=2)
    assert sorted(sum(share) for share in shares) == [70, 70]
    assert sorted(item for share in shares for item in share) == sorted(size for size, _ in items)
    assert share_out([(1, "a")], shares=4) == [["a"]]
    assert share_out([], shares=4) == []


# -- memory ----------------------------------------------------------------------------------------


def test_two_processes_see_the_same_tensors() -> None:
    tensors = [
        torch.randn(3, 5),
        torch.tensor(4.0, dtype=torch.float64),
        torch.randn(9).to(torch.bfloat16),
        torch.empty(0, 2),
    ]
    layout = lay_out(tensors)
    memory = HostMemory.make(layout.nbytes)
    for tensor, region in zip(tensors, layout.regions, strict=True):
        memory.tensor(region).copy_(tensor)
    other = HostMemory(os.dup(memory.file), memory.nbytes)  # as the writer maps it
    for tensor, region in zip(tensors, layout.regions, strict=True):
        found = other.tensor(region)
        assert torch.equal(found, tensor)
        assert found.untyped_storage().nbytes() == tensor.nbytes
    other.close()
    memory.close()


def test_no_tensor_reaches_over_two_parts() -> None:
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in [100 << 20] * 7]
    layout = lay_out(tensors)
    assert len(layout.parts) == 4
    assert layout.parts[0][0] == 0
    for (start, size), (following, _) in zip(layout.parts, layout.parts[1:], strict=False):
        assert start + size == following
        assert following % 4096 == 0
    for region in layout.regions:
        assert any(
            start <= region.offset and region.offset + region.nbytes <= start + size
            for start, size in layout.parts
        )


def node(root: Path, *, left_gib: int = 100) -> Path:
    write(root / "proc/meminfo", f"MemTotal: 9 kB\nMemAvailable: {left_gib * GIB // 1024} kB\n")
    write(root / "proc/self/cgroup", "")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_a_node_has_left(tmp_path: Path) -> None:
    assert available(tmp_path) is None
    assert available(node(tmp_path)) == 100 * GIB


def test_what_a_job_has_left(tmp_path: Path) -> None:
    """A job's limit may be on a folder above; the page cache within it is given back."""
    root = node(tmp_path)
    write(root / "proc/self/cgroup", "0::/job_7/step_0\n")
    job = root / "sys/fs/cgroup/job_7"
    write(job / "step_0/memory.max", "max\n")
    write(job / "step_0/memory.current", "5\n")
    write(job / "memory.max", f"{50 * GIB}\n")
    write(job / "memory.current", f"{30 * GIB}\n")
    stat = f"file {29 * GIB}\ninactive_file {4 * GIB}\nactive_file {1 * GIB}\n"
    write(job / "memory.stat", stat)
    assert available(root) == 25 * GIB


def test_what_a_job_has_left_with_the_older_cgroups(tmp_path: Path) -> None:
    root = node(tmp_path)
    write(root / "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n")
    job = root / "sys/fs/cgroup/memory/slurm/job_7"
    write(job / "memory.limit_in_bytes", f"{8 * GIB}\n")
    write(job / "memory.usage_in_bytes", f"{3 * GIB}\n")
    assert available(root) == 5 * GIB


def test_a_lack_is_said_with_figures(tmp_path: Path) -> None:
    root = node(tmp_path, left_gib=100)
    assert lack(10 * GIB, ranks=8, root=root) == ""
    said = lack(12 * GIB, ranks=8, root=root)
    assert said == (
        "96.0 GiB of host memory are needed for the copy (8 ranks on this node), and 100.0 GiB are"
        " left"
    )
    assert lack(12 * GIB, ranks=8, root=tmp_path / "nothing") == ""
