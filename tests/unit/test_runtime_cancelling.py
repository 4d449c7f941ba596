"""The cancel mark as a notice."""

from pathlib import Path

from orchestrator.runtime.cancelling import CancelMark

from .runs import Clock, environment


def test_once_found_it_is_not_forgotten(tmp_path: Path, clock: Clock) -> None:
    mark = CancelMark(environment(tmp_path))
    assert mark.look() is None
    (tmp_path / "cancelled.json").touch()
    assert mark.look() is None  # within the same second
    clock.now += 1.5
    first = mark.look()
    assert first is not None
    assert first.signal == "CANCEL"
    assert mark.look() is first


def test_rank_0_alone_looks(tmp_path: Path) -> None:
    env = environment(tmp_path, rank=1, world_size=2)
    (tmp_path / "cancelled.json").touch()
    assert CancelMark(env).look() is None
