"""The directory of an export: whole or not there, and nothing else is lost for it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import RunError
from orchestrator.export import folder
from orchestrator.export.folder import check_target, new_folder, write_mark


def write(target: Path, text: str, *, force: bool = False, meanwhile: Path | None = None) -> None:
    """Export ``text``; ``meanwhile`` comes to be at the target while that is written."""
    with new_folder(target, force=force, needed=0) as draft:
        write_mark(draft, {})
        (draft / "weights").write_text(text)
        if meanwhile is not None:
            meanwhile.rename(target)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room"),
        (OSError(errno.EROFS, "Read-only file system", "{}"), "Read-only file system; check its"),
    ],
)
def test_what_cannot_be_written_is_told(tmp_path: Path, problem: OSError, text: str) -> None:
    if problem.filename:
        problem.filename = str(tmp_path / ".out.partial")
    target = tmp_path / "out"
    with (
        pytest.raises(RunError, match=f"{target}: the export cannot be written: {text}"),
        new_folder(target, force=False, needed=0),
    ):
        raise problem
    assert names(tmp_path) == []


def test_what_cannot_be_read_is_not_taken_for_that(tmp_path: Path) -> None:
    problem = OSError(errno.EACCES, "Permission denied", "/of/the/checkpoint")
    with pytest.raises(PermissionError), new_folder(tmp_path / "out", force=False, needed=0):
        raise problem


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_that_comes_meanwhile_is_kept(tmp_path: Path, force: bool) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis").write_text("mine")
    with pytest.raises(RunError, match="is no earlier export" if force else "is there already"):
        write(tmp_path / "out", "new", force=force, meanwhile=other)
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "thesis").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_comes_meanwhile_is_kept(tmp_path: Path, force: bool) -> None:
    (tmp_path / "other").write_text("mine")
    with pytest.raises(RunError):
        write(tmp_path / "out", "new", force=force, meanwhile=tmp_path / "other")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "mine"


def test_an_export_that_comes_meanwhile_is_replaced_by_force_alone(tmp_path: Path) -> None:
    write(tmp_path / "other", "first")
    with pytest.raises(RunError, match="is there already"):
        write(tmp_path / "out", "second", meanwhile=tmp_path / "other")
    assert (tmp_path / "out" / "weights").read_text() == "first"
    write(tmp_path / "out", "third", force=True)
    assert (tmp_path / "out" / "weights").read_text() == "third"
    assert names(tmp_path) == ["out"]


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "new")
    assert names(tmp_path) == ["out"]


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    for force in (False, True):
        with pytest.raises(RunError):
            check_target(tmp_path / "out", force=force)


def test_a_mount_point_is_refused_before_the_work() -> None:
    with pytest.raises(RunError, match="a file system is mounted"):
        check_target(Path("/proc"), force=True)


def test_the_earlier_export_comes_back_where_its_successor_cannot_take_its_place(
    tmp_path: Path,
) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(FileNotFoundError):
        folder._replace(tmp_path / "gone", tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "weights").read_text() == "old"


@pytest.mark.processes
def test_what_a_killed_export_left_is_swept(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    place = folder._place()
    of_gone = [f".out.{kind}-{place}-{gone}-ab12" for kind in ("partial", "replaced")]
    alive = f".out.partial-{place}-{os.getpid()}-ab12"
    elsewhere = f".out.partial-{place}1-{gone}-ab12"
    for name in (*of_gone, alive, elsewhere):
        (tmp_path / name).mkdir()
    write(tmp_path / "out", "one")
    assert of_gone[1] in names(tmp_path)  # it may have been all that there was
    assert of_gone[0] not in names(tmp_path)
    write(tmp_path / "out", "two", force=True)
    assert names(tmp_path) == sorted([alive, elsewhere, "out"])
