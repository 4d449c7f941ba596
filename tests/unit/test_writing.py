"""A profile as a file, and how files of ours come to be."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import yaml

from orchestrator.detect import writing
from orchestrator.errors import InputError, ProfileError
from orchestrator.profile import load_profile, read_profile

from .clusters import VERSIONS, detect, gpu_nodes, partition, profile, recorded, small


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_is_read_as_it_was_found(tmp_path: Path, version: str) -> None:
    found = detect(recorded(version))
    path = tmp_path / "deep" / "fsdpq.yaml"
    writing.put(path, writing.as_yaml(found.data), force=False, check=read_profile)
    assert load_profile("fsdpq", base=tmp_path, own=path.parent) == profile(recorded(version))
    assert [one.name for one in path.parent.iterdir()] == ["fsdpq.yaml"]


@pytest.mark.parametrize(
    "name", ["1e5", "12", "0123", "1.", "on", "null", "1_000", "12:30:00", "-5"]
)
def test_names_that_look_like_something_else(tmp_path: Path, name: str) -> None:
    cluster = small(partition(name), nodes=(gpu_nodes(partitions=(name,)),))
    path = tmp_path / "x.yaml"
    writing.put(path, writing.as_yaml(detect(cluster).data), force=False, check=read_profile)
    assert read_profile(path).default_partition == name


@pytest.mark.parametrize(
    ("cluster", "name"),
    [("Big Iron/2", "big-iron-2"), ("local", "my-local"), ("../../x", "x"), ("\x1b[31m", "31m")],
)
def test_the_name_is_one_of_a_file(cluster: str, name: str) -> None:
    found = detect(small(partition(), nodes=(gpu_nodes(),), ClusterName=cluster), names=("local",))
    assert found.data["name"] == name
    yaml.safe_load(writing.as_yaml(found.data))


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    text = writing.as_yaml(detect(recorded()).data)
    with pytest.raises(InputError, match="--force"):
        writing.put(path, text, force=False, check=read_profile)
    assert path.read_text() == "mine"
    writing.put(path, text, force=True, check=read_profile)
    assert read_profile(path).name == "fsdpq"


def test_what_does_not_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ProfileError):
        writing.put(tmp_path / "x.yaml", "name: 5", force=False, check=read_profile)
    assert list(tmp_path.iterdir()) == []


def put(path: Path, *, force: bool = False) -> None:
    text = writing.as_yaml(detect(recorded()).data)
    writing.put(path, text, force=force, check=read_profile)


def test_the_file_has_the_permissions_of_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(tmp_path / "x.yaml")
        assert stat.S_IMODE((tmp_path / "x.yaml").stat().st_mode) == 0o640
    finally:
        os.umask(before)
    (tmp_path / "x.yaml").chmod(0o604)
    put(tmp_path / "x.yaml", force=True)
    assert stat.S_IMODE((tmp_path / "x.yaml").stat().st_mode) == 0o604


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "y.yaml").write_text("old")
    link = tmp_path / "x.yaml"
    link.symlink_to("shared/y.yaml")
    put(link, force=True)
    assert link.is_symlink()
    assert read_profile(tmp_path / "shared" / "y.yaml").name == "fsdpq"
    assert [one.name for one in (tmp_path / "shared").iterdir()] == ["y.yaml"]


def test_what_is_no_file_is_not_written_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /dev/null would be
    with pytest.raises(InputError, match="no file"):
        put(tmp_path / "pipe", force=True)
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(InputError, match=r"x\.yaml: cannot be written: there is something"):
        put(tmp_path / "x.yaml", force=True)


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = r"x\.yaml: cannot be written: No space left on device"
    with pytest.raises(InputError, match=said):
        put(tmp_path / "x.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        writing.put(tmp_path / "x.yaml", "name: 5", force=False, check=read_profile)
    assert str(caught.value).startswith(f"{tmp_path / 'x.yaml'}: ")
