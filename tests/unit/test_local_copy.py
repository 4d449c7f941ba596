"""Copies of checkpoint files on a node: names, what is taken for one, what is removed."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from orchestrator.checkpoint import (
    Checkpoint,
    FileEntry,
    Manifest,
    inspect,
    prepare,
    publish,
    published_name,
)
from orchestrator.errors import SpecError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime.environment import read_environment
from orchestrator.trainer import direct as direct_files
from orchestrator.trainer import local_copy, room, step_copy
from orchestrator.trainer.copying import beside
from orchestrator.trainer.local_copy import (
    LocalCopy,
    folder_name,
    local_copy_of,
    newest_first,
    outdated,
    parse_copy,
)
from orchestrator.trainer.local_reader import Copies, holder
from orchestrator.trainer.shards import Plan, write_files

NAME = "__0_0.distcp"
DATA = bytes(range(256)) * 100


@pytest.fixture
def local(tmp_path: Path) -> LocalCopy:
    run = tmp_path / "runs" / "llama"
    run.mkdir(parents=True)
    return LocalCopy(tmp_path / "node", run)


def put(
    local: LocalCopy, data: bytes = DATA, *, step: int = 40, attempt: int = 3, name: str = NAME
) -> Path:
    """Keep a copy of a file, and return it."""
    copy = local.begin(f"step-{step}.tmp-{attempt}", nbytes=len(data))
    file = copy.file(name)
    file.write(memoryview(data))
    file.finish()
    assert not copy.close()
    return folder(local) / f"step-{step}.{attempt}" / name


def folder(local: LocalCopy) -> Path:
    return local.directory / local.name


def published(local: LocalCopy, data: bytes = DATA, *, step: int = 40) -> Checkpoint:
    checkpoints = local.run / "checkpoints"
    temporary = prepare(checkpoints, step=step, attempt=3)
    (temporary / NAME).write_bytes(data)
    files = {NAME: FileEntry(len(data), hashlib.sha256(data).hexdigest())}
    manifest = Manifest(step=step, world_size=1, files=files, at=1.0)
    publish(temporary, manifest, attempt=3, allowed=lambda: None)
    return inspect(checkpoints / published_name(step), step=step)


def read(local: LocalCopy, checkpoint: Checkpoint) -> bytes | None:
    """Return what a rank would read in place of the published file; None if nothing."""
    copies = Copies(local, checkpoint)
    copies.look([NAME])
    file = copies.get(NAME)
    if file is None:
        return None
    file.seek(0)
    data = file.read()
    copies.close()
    return data


def left(local: LocalCopy) -> list[str]:
    return sorted(path.name for path in folder(local).glob("step-*"))


# -- names -----------------------------------------------------------------------------------------


def test_runs_and_users_have_folders_of_their_own() -> None:
    names = {
        folder_name(Path(run), user=user)
        for run in ("/a/llama", "/b/llama", "/a/llama 8b", "/a/llama-8b", "/a/" + "x" * 300)
        for user in (1000, 1001)
    }
    assert len(names) == 10
    assert all(len(name) < 100 and "/" not in name and " " not in name for name in names)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("step-40.3", (40, 3)),
        ("step-0.0", (0, 0)),
        ("step-40", None),
        ("step-040.3", None),
        ("step-40.3.part", None),
        ("step-40.tmp-3", None),
        ("step-\u0664.3", None),
        ("step-40.3\n", None),
        ("run", None),
    ],
)
def test_only_exact_names_are_copies(name: str, found: tuple[int, int] | None) -> None:
    assert parse_copy(name) == found


def test_what_may_go() -> None:
    names = ["run", "step-9.1", "step-20.1", "step-20.2", "step-30.1", "step-10.2", "step-30.2"]
    gone = ["step-9.1", "step-20.1", "step-30.1", "step-10.2"]
    assert outdated(names, step=20, attempt=2) == gone  # step 30 is being written
    assert outdated(names, step=20, attempt=3) == []  # resumed from, and not copied yet


def test_the_newest_attempt_comes_first_by_number() -> None:
    names = ["step-4.9", "step-4.10", "step-40.1", "run", "step-4.1"]
    assert newest_first(names, step=4) == ["step-4.10", "step-4.9", "step-4.1"]


def test_not_in_the_run_directory(tmp_path: Path) -> None:
    env = read_environment({"FSDPQ_RUN_DIR": str(tmp_path), "FSDPQ_ATTEMPT": "1"})
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    for place in (tmp_path, tmp_path / "x", link / "x"):
        with pytest.raises(SpecError, match="lies in the run directory"):
            local_copy_of(str(place), env)
    assert local_copy_of(None, env) is None
    assert local_copy_of(str(tmp_path.parent / "node"), env) is not None


# -- what is taken for a copy ----------------------------------------------------------------------


def test_a_copy_is_read_in_place_of_the_file(local: LocalCopy) -> None:
    put(local)
    checkpoint = published(local)
    (checkpoint.path / NAME).write_bytes(b"")
    assert read(local, checkpoint) == DATA
    say = holder(local, first=True)
    assert say is not None
    assert say(checkpoint) == {NAME}
    folders = (local.directory, folder(local), folder(local) / "step-40.3")
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_ranks_that_do_not_speak_for_their_node(local: LocalCopy) -> None:
    put(local)
    silent = holder(local, first=False)
    assert silent is not None  # all ranks take part in the same collectives
    assert silent(published(local)) == frozenset()
    assert holder(None, first=True) is None


def test_those_of_the_newest_attempt_are_opened_ahead(local: LocalCopy) -> None:
    put(local, b"x" * len(DATA), attempt=2)
    put(local)
    put(local, b"short", name="__0_1.distcp")
    checkpoint, right = published(local), FileEntry(len(DATA), "")
    opened = local.open_all(checkpoint, {NAME: right, "__0_1.distcp": right, "gone": right})
    assert {name: file.read() for name, file in opened.items()} == {NAME: DATA}
    opened[NAME].close()


def test_a_flipped_bit(local: LocalCopy, capsys: pytest.CaptureFixture[str]) -> None:
    put(local, DATA[:-1] + b"x")
    assert read(local, published(local)) is None
    assert (
        "local copy of __0_0.distcp of step 40 is not what was published" in capsys.readouterr().err
    )


def test_another_attempts_copy_of_the_same_step(local: LocalCopy) -> None:
    put(local, attempt=3)
    put(local, DATA[::-1], attempt=4)  # not published: attempt 3 was
    assert read(local, published(local)) == DATA


def test_a_copy_that_is_cut_off_or_not_there(local: LocalCopy) -> None:
    checkpoint = published(local)
    assert read(local, checkpoint) is None
    copy = local.begin("step-40.tmp-3", nbytes=len(DATA))
    file = copy.file(NAME)
    file.write(memoryview(DATA))  # all of it, and yet it was never finished
    assert read(local, checkpoint) is None
    file.drop()
    copy.close()
    put(local, DATA[:-1])
    assert read(local, checkpoint) is None
    assert holder(local, first=True)(checkpoint) == frozenset()  # type: ignore[misc]


def test_links_pipes_and_open_folders_are_refused(local: LocalCopy, tmp_path: Path) -> None:
    file = put(local)
    checkpoint = published(local)
    assert read(local, checkpoint) == DATA
    kept = file.rename(tmp_path / "kept")
    file.symlink_to(kept)
    assert read(local, checkpoint) is None
    file.unlink()
    os.mkfifo(file)
    assert read(local, checkpoint) is None
    file.unlink()
    kept.rename(file)
    folder(local).chmod(0o750)
    assert read(local, checkpoint) is None
    folder(local).chmod(0o700)
    assert read(local, checkpoint) == DATA
    moved = folder(local).rename(tmp_path / "moved")
    folder(local).symlink_to(moved)
    assert read(local, checkpoint) is None


def test_a_folder_of_somebody_else(local: LocalCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local)
    checkpoint = published(local)
    name, me = local.name, os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    monkeypatch.setattr(local_copy, "folder_name", lambda run, user: name)
    assert read(local, checkpoint) is None
    assert "belongs to user" in local.begin("step-41.tmp-3", nbytes=1).close()
    local.remove()
    local.thin_out(step=40, attempt=3)
    monkeypatch.undo()
    assert read(local, checkpoint) == DATA


# -- problems while writing ------------------------------------------------------------------------


def test_a_place_that_cannot_be(local: LocalCopy, tmp_path: Path) -> None:
    local.directory.write_text("a file")
    assert local.begin("step-40.tmp-3", nbytes=1).close()
    local.directory.unlink()
    (tmp_path / "elsewhere").mkdir()
    local.directory.symlink_to(tmp_path / "elsewhere")
    assert local.begin("step-40.tmp-3", nbytes=1).close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_node_fails_no_save(
    local: LocalCopy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Full:
        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            pass

    plain = direct_files.open_new

    def open_new(path: Path, *, direct: bool) -> object:
        file = plain(path, direct=direct)
        if not path.name.startswith("b"):
            return file
        file.close()
        return Full()

    monkeypatch.setattr(step_copy, "open_new", open_new)
    save = tmp_path / "step-40.tmp-3"
    save.mkdir()
    plans = [Plan(name, [lambda: DATA]) for name in ("a", "b", "c")]
    with beside(local, save, nbytes=3 * len(DATA)) as copy:
        written = write_files(save, plans, threads=1, copy=copy)
    assert [file.name for file in written] == ["a", "b", "c"]
    assert all((save / name).read_bytes() == DATA for name in "abc")
    assert [path.name for path in (folder(local) / "step-40.3").iterdir()] == ["a"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"no copy of step 40 in {local.directory}, the save goes on: No space left" in said


def test_older_copies_make_room(local: LocalCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local, step=30)

    def lack(made: int, nbytes: int, *, ranks: int) -> str:
        return "no room" if len(left(local)) > 1 or nbytes > len(DATA) else ""

    monkeypatch.setattr(local_copy, "lack_of_room", lack)
    put(local, step=40)
    assert left(local) == ["step-40.3"]
    assert local.begin("step-50.tmp-3", nbytes=len(DATA) + 1).close() == "no room"


def test_room_is_for_all_ranks_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "other-ranks").write_bytes(bytes(1000))
    at = os.open(tmp_path, os.O_RDONLY)
    disk = os.fstatvfs(at)
    free = disk.f_bavail * disk.f_frsize
    assert not room.lack_of_room(at, 0, ranks=8)
    assert not room.lack_of_room(at, 125, ranks=8)  # it is there already
    assert "GiB are left" in room.lack_of_room(at, free // 4, ranks=8)
    os.close(at)


def test_a_file_system_in_memory_counts_as_memory_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy").mkdir()
    at = os.open(tmp_path / "copy", os.O_RDONLY)
    number = os.fstat(at).st_dev
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    line = f"22 1 {os.major(number)}:{os.minor(number)} / /x rw shared:1 - %s none rw\n"
    monkeypatch.setattr(room, "available", lambda root: 1000)
    mounts.write_text("1 1 0:999 / / rw - tmpfs none rw\n" + line % "ext4")
    assert not room.lack_of_room(at, 450, ranks=2, root=tmp_path)
    assert not room.lack_of_room(at, 2000, ranks=2, root=tmp_path)
    mounts.write_text(line % "tmpfs")
    assert not room.lack_of_room(at, 450, ranks=2, root=tmp_path)
    assert "memory of the node or of the job" in room.lack_of_room(at, 451, ranks=2, root=tmp_path)
    os.close(at)


# -- removing --------------------------------------------------------------------------------------


def test_only_the_newest_stays(local: LocalCopy) -> None:
    for step in (10, 20, 30):
        put(local, step=step)
    local.thin_out(step=25, attempt=3)  # a save that this node could not copy
    assert left(local) == ["step-10.3", "step-20.3", "step-30.3"]
    local.thin_out(step=20, attempt=3)
    assert left(local) == ["step-20.3", "step-30.3"]


def test_what_ended_runs_left_goes(local: LocalCopy, tmp_path: Path) -> None:
    others = [LocalCopy(local.directory, tmp_path / "runs" / name) for name in "abcd"]
    for other in others:
        other.run.mkdir()
        put(other)
    put(local)
    (local.directory / "mine").mkdir()
    layout = RunLayout(others[0].run)
    layout.finished.write_text("{}")
    RunLayout(others[1].run).cancelled.write_text("{}")
    others[2].run.rmdir()
    local.thin_out(step=40, attempt=3)
    names = sorted(path.name for path in local.directory.iterdir())
    assert names == sorted([local.name, others[3].name, "mine"])
    local.remove()
    assert not folder(local).exists()
