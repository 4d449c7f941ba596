"""Checkpoints that were verified, and then do not read when they are loaded."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from orchestrator.checkpoint import Checkpoint
from orchestrator.errors import CheckpointError, SpecError
from orchestrator.trainer.identity import saved_identity
from orchestrator.trainer.saver import Saver
from orchestrator.trainer.world import World

from .test_local_copy import Desk, spoil
from .test_local_copy import world as world

pytestmark = pytest.mark.e2e


def saved(tmp_path: Path, world: World) -> tuple[Desk, list[float]]:
    """Return a run that was saved after one and two steps, and the losses of the next two."""
    desk = Desk(tmp_path, world)
    first = desk.attempt(1)
    for _ in range(2):
        first.steps(1)
        first.saver.save()
    losses = first.steps(2)
    first.saver.close()
    for copy in desk.copies:
        copy.unlink()
    return desk, losses


def names(desk: Desk) -> set[str]:
    return {path.name for path in (desk.folder / "run/checkpoints").iterdir()} - {"LATEST"}


def refuse_while_loading(
    monkeypatch: pytest.MonkeyPatch, number: int, name: str, *, times: int = 1000
) -> None:
    """Let the file ``name`` of step 2 fail from the choice on, as often as that is asked for."""
    load, real, left = Saver.load, Path.open, [times]

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == name and self.parent.name == "step-2" and left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(self))
        return real(self, *args, **kwargs)

    def late(self: Saver, checkpoint: Checkpoint) -> None:
        monkeypatch.setattr(Path, "open", fail)
        load(self, checkpoint)

    monkeypatch.setattr(Saver, "load", late)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_what_does_not_read_ends_the_attempt_and_stays(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    desk, losses = saved(tmp_path, world)
    with monkeypatch.context() as patch:
        refuse_while_loading(patch, number, name)
        with pytest.raises(CheckpointError, match=f"{name} cannot be read.*not set aside"):
            desk.attempt(2)
    assert names(desk) == {"step-1", "step-2"}
    assert desk.attempt(3).steps(2) == losses


def test_metadata_that_only_the_load_itself_cannot_read(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DCP makes an AssertionError of it, and looks for a file that is truly not there."""
    desk, losses = saved(tmp_path, world)
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "_check_identity", lambda self, copies: None)
        refuse_while_loading(patch, errno.ESTALE, ".metadata")
        with pytest.raises(CheckpointError, match=r"metadata cannot be read: Stale.*rank 0"):
            desk.attempt(2)
    assert desk.attempt(3).steps(2) == losses


def test_what_does_not_read_once_is_read_again(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With copies on the node a load is tried twice: with them and without."""
    desk, losses = saved(tmp_path, world)
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "_check_identity", lambda self, copies: None)
        refuse_while_loading(patch, errno.ESTALE, ".metadata", times=1)
        assert desk.attempt(2).steps(2) == losses


def test_a_disk_that_is_bad_costs_the_newest_one(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, losses = saved(tmp_path, world)
    refuse_while_loading(monkeypatch, errno.EIO, "__0_0.distcp")
    again = desk.attempt(2)
    assert again.training.state.step == 1
    assert again.steps(3)[1:] == losses


def test_the_older_one_has_to_be_of_this_training_too(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one is of no use and says nothing of what it is of."""
    desk, _ = saved(tmp_path, world)
    assert desk.spec.model.config is not None
    desk.spec.model.config["rms_norm_eps"] = 0.5
    refuse_while_loading(monkeypatch, errno.EIO, ".metadata")
    with pytest.raises(SpecError, match="rms_norm_eps"):
        desk.attempt(2)


def test_damaged_metadata_say_nothing(tmp_path: Path, world: World) -> None:
    saved(tmp_path, world)
    folder = tmp_path / "run/checkpoints/step-2"
    assert saved_identity(folder) != ""
    spoil(folder / ".metadata")
    assert saved_identity(folder) == ""
