"""A checkpoint that cannot be read is not damaged, and no older one stands in for it."""

import errno
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.checkpoint import (
    Checkpoint,
    Fault,
    has_history,
    insist,
    inspect,
    list_checkpoints,
    newest_complete,
    newest_wanted,
)
from orchestrator.cli import main
from orchestrator.cli.export import _chosen
from orchestrator.errors import CheckpointError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runtime import resuming
from orchestrator.runtime.guard import _report
from orchestrator.watching.observe import checkpoint_step

from .runs import make_run, read, refuse, save


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The newest of two checkpoints, with a manifest that cannot be opened for now."""
    first = make_run(tmp_path)
    save(first, 1)
    return save(first, 2)


@pytest.fixture
def unread(newest: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    refuse(monkeypatch, "stat", newest / "manifest.json", errno.ESTALE)
    return newest


def fsdpq(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    return result.exit_code, result.output


def test_damage_may_be_set_aside_and_a_read_error_may_not(tmp_path: Path) -> None:
    insist(tmp_path, Fault("data is missing"))
    with pytest.raises(CheckpointError, match=r"stale\. It may be sound"):
        insist(tmp_path, Fault("stale", unread=True))


def test_the_one_that_is_wanted(unread: Path) -> None:
    found = newest_wanted(unread.parent)
    assert found is not None
    assert (found.step, found.complete, found.unread) == (2, False, True)
    complete = newest_complete(unread.parent)
    assert complete is not None
    assert complete.step == 1


def test_a_damaged_one_is_not_wanted(newest: Path) -> None:
    (newest / "data").unlink()
    assert newest_wanted(newest.parent) == Checkpoint(1, newest.parent / "step-1", complete=True)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_a_directory_that_cannot_be_looked_at(
    newest: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Python 3.14 says of it that it is no directory, and raises nothing."""
    refuse(monkeypatch, "stat", newest, number)
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    assert inspect(newest, step=2).unread


def test_a_link_to_a_file_system_that_is_away(newest: Path, tmp_path: Path) -> None:
    newest.rename(tmp_path / "mounted")
    newest.symlink_to(tmp_path / "mounted")
    assert inspect(newest, step=2).complete
    (tmp_path / "mounted").rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match="a link to what is not there"):
        make_run(tmp_path, attempt=2).resume(patience_s=0)
    (tmp_path / "unmounted").rename(tmp_path / "mounted")
    again = make_run(tmp_path, attempt=3).resume()
    assert again is not None
    assert again.step == 2


def test_all_checkpoints_behind_a_link_that_leads_nowhere(newest: Path, tmp_path: Path) -> None:
    """Taken for an empty directory, the run would start at step 0."""
    newest.parent.rename(tmp_path / "away")
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    for ask in (list_checkpoints, newest_complete, newest_wanted, has_history):
        with pytest.raises(CheckpointError, match="cannot be listed"):
            ask(tmp_path / "checkpoints")


def test_a_stale_handle_is_waited_for(newest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []

    def is_file(self: Path) -> bool:
        looks.append(self)
        if len(looks) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return True

    monkeypatch.setattr(Path, "is_file", is_file)
    resuming.wait_until_visible(Checkpoint(2, newest, complete=True))
    assert len(looks) == 3


@pytest.mark.parametrize("name", ["data", "manifest.json"])
def test_where_no_disk_answers_nothing_is_set_aside(
    newest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A bad disk is one thing, and a storage server that is away for a while another."""
    with monkeypatch.context() as patch:
        for step in (1, 2):
            refuse(patch, "open", newest.parent / f"step-{step}" / name, errno.EIO)
        run = make_run(tmp_path, attempt=2)
        with pytest.raises(CheckpointError, match=r"step-2.*Input/output error.*may be sound"):
            run.resume(patience_s=0)
        assert not run.env.files.status.exists()  # "no_checkpoint" would be final
    again = make_run(tmp_path, attempt=3).resume()
    assert again is not None
    assert again.step == 2


def test_the_end_of_such_an_attempt_tells_of_no_older_step(unread: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, attempt=2)
    with pytest.raises(CheckpointError) as raised:
        run.resume(patience_s=0)
    _report(run, raised.value)
    status = read(run.env.files.status)
    assert (status["outcome"], status["first_step"], status["saved_step"]) == ("failed", 2, 2)
    assert status["progress"] is False


def test_an_attempt_that_cannot_list_them_says_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    run = make_run(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        run.resume(patience_s=0)
    _report(run, raised.value)
    assert "cannot be listed" in read(run.env.files.status)["reason"]


def test_the_watcher_counts_on(unread: Path, tmp_path: Path) -> None:
    assert checkpoint_step(RunLayout(tmp_path)) == 2


def test_the_command_line_says_what_a_resume_would_do(unread: Path) -> None:
    code, text = fsdpq("checkpoints", unread.parent)
    assert code == 0
    assert "a resume would end: step 2 cannot be read" in text
    code, text = fsdpq("checkpoints", unread.parent, "--json")
    assert '"resume": null' in text
    assert '"unread": true' in text


def test_none_of_them_is_of_use(newest: Path) -> None:
    for step in (1, 2):
        (newest.parent / f"step-{step}" / "manifest.json").unlink()
    assert "a resume would end: none of these is of use" in fsdpq("checkpoints", newest.parent)[1]


@pytest.mark.parametrize("step", [None, 2])
def test_no_older_one_is_exported_in_its_place(
    unread: Path, tmp_path: Path, step: int | None
) -> None:
    with pytest.raises(CheckpointError, match=r"step-2.*cannot be read: Stale file handle"):
        _chosen(RunLayout(tmp_path), step)


def test_a_step_that_is_not_there(unread: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there are 2, 1"):
        _chosen(RunLayout(tmp_path), 7)
