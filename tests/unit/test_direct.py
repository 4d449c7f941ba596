"""Files written past the page cache hold what was written, whatever the file system can do."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.trainer.direct import DirectFile, open_new

PART = 4 << 20
SIZES = (0, 1, 4095, 4096, PART - 1, PART, PART + 1, 2 * PART + 5000)

Write = Callable[[int, memoryview], int]


def data(size: int) -> bytes:
    return bytes(range(251)) * (size // 251 + 1)


def put(path: Path, content: bytes, *, piece: int) -> None:
    file = open_new(path, direct=True)
    view = memoryview(content)
    for start in range(0, len(content), piece):
        part = view[start : start + piece]
        assert file.write(part) == len(part)
    file.flush()
    os.fsync(file.fileno())
    file.close()


def past_the_cache(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("piece", [1000, 4096, 3 * PART])
@pytest.mark.parametrize("size", SIZES)
def test_all_is_there(tmp_path: Path, size: int, piece: int) -> None:
    content = data(size)[:size]
    put(tmp_path / "file", content, piece=piece)
    assert (tmp_path / "file").read_bytes() == content


def test_whole_parts_go_past_the_cache_and_the_rest_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    seen: list[tuple[bool, int]] = []

    def write(fd: int, view: memoryview) -> int:
        seen.append((past_the_cache(fd), len(view)))
        return real(fd, view)

    # Not every file system that tests run on can do it; what is asked of the kernel is the same.
    monkeypatch.setattr(os, "write", write)
    put(tmp_path / "file", data(2 * PART + 7)[: 2 * PART + 7], piece=PART)
    if not seen[0][0]:
        pytest.skip(f"{tmp_path} is on a file system that cannot write past the cache")
    assert seen == [(True, PART), (True, PART), (False, 7)]


def test_a_file_system_that_refuses_to_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, mode))  # Linux makes it nevertheless
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    put(tmp_path / "file", data(5000), piece=5000)
    assert (tmp_path / "file").read_bytes() == data(5000)


def refusing(real: Write) -> Write:
    """A file system that finds out only when it is written to."""

    def write(fd: int, view: memoryview) -> int:
        if past_the_cache(fd):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, view)

    return write


def little(step: int) -> Callable[[Write], Write]:
    """A kernel that takes so many bytes at once."""

    def made(real: Write) -> Write:
        def write(fd: int, view: memoryview) -> int:
            # As the kernel does with a place that is none for it.
            if past_the_cache(fd) and os.lseek(fd, 0, os.SEEK_CUR) % 512:
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, view[:step])

        return write

    return made


@pytest.mark.parametrize(
    "how",
    [refusing, little(1 << 20), little(300_000)],
    ids=["refused", "whole sectors", "no whole sectors"],
)
def test_writes_that_are_refused_or_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Write], Write]
) -> None:
    monkeypatch.setattr(os, "write", how(os.write))
    content = data(2 * PART + 5000)
    put(tmp_path / "file", content, piece=PART)
    assert (tmp_path / "file").read_bytes() == content


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, view: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    file = open_new(tmp_path / "file", direct=True)
    with pytest.raises(OSError, match="No space left"):
        file.write(memoryview(data(PART))[:PART])
    file.close()
    file.close()


@pytest.mark.parametrize("past", [True, False])
def test_what_is_there_is_not_written_over(tmp_path: Path, past: bool) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        open_new(tmp_path / "file", direct=past)
    assert (tmp_path / "file").read_text() == "old"


def test_without_it_the_cache_is_used(tmp_path: Path) -> None:
    file = open_new(tmp_path / "file", direct=False)
    assert not isinstance(file, DirectFile)
    file.close()
