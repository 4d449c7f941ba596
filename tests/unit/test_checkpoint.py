import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.checkpoint import (
    Checkpoint,
    Manifest,
    damage,
    describe_files,
    doomed,
    has_history,
    list_checkpoints,
    newest_complete,
    prepare,
    publish,
    published_name,
    quarantine,
    read_manifest,
    retain,
    scratch_name,
)
from orchestrator.checkpoint.manifest import list_files
from orchestrator.checkpoint.names import Scratch, parse_scratch, published_step
from orchestrator.errors import CheckpointError

SHARD = "__0_0.distcp"


def always() -> None:
    """Nothing has superseded this attempt."""


def save(directory: Path, step: int, *, attempt: int = 1, content: bytes = b"weights") -> Path:
    temporary = prepare(directory, step=step, attempt=attempt)
    (temporary / SHARD).write_bytes(content)
    (temporary / ".metadata").write_bytes(b"metadata")
    (temporary / "inner").mkdir()
    (temporary / "inner" / "file").write_bytes(b"deep")
    files = describe_files(temporary, list_files(temporary))
    manifest = Manifest(step=step, world_size=1, files=files, at=1.0)
    return publish(temporary, manifest, attempt=attempt, allowed=always)


def steps(directory: Path) -> list[int]:
    return [found.step for found in list_checkpoints(directory) if found.complete]


def reason(directory: Path, step: int, *, verify: bool = False) -> str:
    (found,) = [c for c in list_checkpoints(directory, verify=verify) if c.step == step]
    assert found.complete == (not found.reason)
    return found.reason


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-0", 0),
        ("step-7", 7),
        ("step-100000", 100000),
        ("step-007", None),
        ("step-", None),
        ("step--1", None),
        ("step-+1", None),
        ("step-1_0", None),
        ("step-\u0667", None),
        ("step-7\n", None),
        ("old-step-7", None),
        ("step-7.tmp-1", None),
        ("step-7.quarantined-1", None),
        ("Step-7", None),
        ("latest", None),
        ("handpicked", None),
    ],
)
def test_only_exact_names_are_checkpoints(name: str, step: int | None) -> None:
    assert published_step(name) == step
    if step is not None:
        assert published_name(step) == name


def test_scratch_names_read_back() -> None:
    for copy in (0, 3):
        name = scratch_name(12, kind="quarantined", attempt=4, copy=copy)
        assert parse_scratch(name) == Scratch(12, "quarantined", 4)
        assert published_step(name) is None
    assert parse_scratch("step-12") is None
    assert parse_scratch("step-12.new-4") is None


# -- listing -------------------------------------------------------------------------------------


def test_newest_first_by_number(tmp_path: Path) -> None:
    for step in (500, 2500, 1000):
        save(tmp_path, step)
    assert steps(tmp_path) == [2500, 1000, 500]
    newest = newest_complete(tmp_path, verify=True)
    assert newest == Checkpoint(2500, tmp_path / "step-2500", complete=True)
    older = newest_complete(tmp_path, before=2500)
    assert older is not None
    assert older.step == 1000
    assert newest_complete(tmp_path, before=500) is None


def test_missing_directory_holds_nothing(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "none") == []
    assert newest_complete(tmp_path / "none") is None
    assert not has_history(tmp_path / "none")


def test_directory_that_cannot_be_listed_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for ask in (list_checkpoints, newest_complete, has_history):
        with pytest.raises(CheckpointError, match="cannot be listed"):
            ask(tmp_path / "file")


def test_junk_is_not_counted(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / "step-9.tmp-1").mkdir()
    (tmp_path / "latest").mkdir()
    (tmp_path / "step-x").mkdir()
    (tmp_path / "step-11.quarantined-1").mkdir()
    (tmp_path / b"step-\xff".decode("utf-8", "surrogateescape")).mkdir()
    assert [found.step for found in list_checkpoints(tmp_path)] == [5]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    for step in range(1, 9):
        save(tmp_path, step)
    (tmp_path / "step-1" / "manifest.json").unlink()
    (tmp_path / "step-2" / SHARD).unlink()
    (tmp_path / "step-3" / SHARD).write_bytes(b"weigh")
    (tmp_path / "step-4" / SHARD).write_bytes(b"w3ights")
    (tmp_path / "step-5" / "manifest.json").write_text('{"step": 5, "fi')
    (tmp_path / "step-6").rename(tmp_path / "step-60")
    (tmp_path / "step-7" / "inner" / "file").unlink()
    (tmp_path / "step-7" / "inner" / "file").mkdir()
    (tmp_path / "step-20").write_text("a file")
    (tmp_path / "step-21").mkdir()
    (tmp_path / "step-22").symlink_to("nowhere")
    assert reason(tmp_path, 1) == "no manifest: the save was cut off"
    assert reason(tmp_path, 2) == f"{SHARD} is missing"
    assert reason(tmp_path, 3) == f"{SHARD} has 5 bytes instead of 7"
    assert reason(tmp_path, 4) == ""
    assert "hash differs" in reason(tmp_path, 4, verify=True)
    assert "manifest is damaged" in reason(tmp_path, 5)
    assert "manifest is of step 6" in reason(tmp_path, 60)
    assert reason(tmp_path, 7) == "inner/file is not a file"
    assert reason(tmp_path, 8, verify=True) == ""
    assert reason(tmp_path, 20) == "is not a directory"
    assert "no manifest and no .metadata" in reason(tmp_path, 21)
    assert reason(tmp_path, 22) == "is a link to what is not there"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        '{"step": 1}',
        '{"step": 1, "world_size": 1, "at": 0, "files": {}}',
        '{"step": 1, "world_size": 1, "at": 0, "files": []}',
        '{"step": 1, "world_size": 1, "at": 0, "files": {"../x": {"size": 0, "sha256": ""}}}',
        '{"step": 1, "world_size": 1, "at": 0, "files": {"/x": {"size": 0, "sha256": ""}}}',
        '{"step": "x", "world_size": 1, "at": 0, "files": {"x": {"size": 0, "sha256": ""}}}',
        "[" * 100_000,
        '{"step": Infinity, "world_size": 1, "at": 0, "files": {"x": {"size": 0, "sha256": ""}}}',
        '{"step": 1, "world_size": 1, "at": 0, "files": {"x": {"size": Infinity, "sha256": ""}}}',
        r'{"step": 1, "world_size": 1, "at": 0, "files": {"a\u0000": {"size": 0, "sha256": ""}}}',
        r'{"step": 1, "world_size": 1, "at": 0, "files": {"a\ud800": {"size": 0, "sha256": ""}}}',
    ],
)
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="manifest is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_manifest_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Nobody ever writes into such a FIFO, so reading it would never end."""
    make(tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match="it is not a file"):
        read_manifest(tmp_path)


def test_manifest_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="manifest is damaged"):
        read_manifest(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    path.chmod(0)
    assert "cannot be read" in reason(tmp_path, 3)
    path.chmod(0o700)


def test_linked_checkpoint_counts(tmp_path: Path) -> None:
    path = save(tmp_path / "elsewhere", 3)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "step-3").symlink_to(path)
    assert steps(tmp_path / "here") == [3]


def test_damage_of_some_files_only(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    manifest = read_manifest(path)
    (path / SHARD).write_bytes(b"w3ights")
    assert damage(path, manifest, hashes=True, names=[".metadata"]) is None
    assert damage(path, manifest, hashes=True, names=[SHARD]) is not None


# -- publishing ----------------------------------------------------------------------------------


def test_published_files_are_described(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    data = json.loads((path / "manifest.json").read_text())
    assert data["step"] == 3
    assert sorted(data["files"]) == [".metadata", SHARD, "inner/file"]
    assert data["files"][SHARD]["size"] == 7
    assert (tmp_path / "LATEST").read_text() == "step-3\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-3"]


def test_complete_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    save(tmp_path, 3, content=b"first")
    path = save(tmp_path, 3, attempt=2, content=b"second")
    assert (path / SHARD).read_bytes() == b"first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step-3"]


def test_broken_checkpoint_makes_way(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    (path / SHARD).unlink()
    save(tmp_path, 3, attempt=2, content=b"second")
    assert (path / SHARD).read_bytes() == b"second"
    why = (tmp_path / "step-3.quarantined-2" / "QUARANTINE.txt").read_text()
    assert why == f"{SHARD} is missing\n"


def test_file_in_the_way_makes_way(tmp_path: Path) -> None:
    (tmp_path / "step-3").write_text("in the way")
    save(tmp_path, 3)
    assert steps(tmp_path) == [3]
    assert (tmp_path / "step-3.quarantined-1").read_text() == "in the way"


def test_superseded_attempt_publishes_nothing(tmp_path: Path) -> None:
    def never() -> None:
        raise CheckpointError("superseded")

    temporary = prepare(tmp_path, step=3, attempt=1)
    (temporary / SHARD).write_bytes(b"x")
    files = describe_files(temporary, [SHARD])
    manifest = Manifest(step=3, world_size=1, files=files, at=1.0)
    with pytest.raises(CheckpointError, match="superseded"):
        publish(temporary, manifest, attempt=1, allowed=never)
    assert list_checkpoints(tmp_path) == []
    assert not has_history(tmp_path)


def test_prepare_starts_afresh(tmp_path: Path) -> None:
    (prepare(tmp_path, step=3, attempt=1) / "left").write_text("over")
    assert list(prepare(tmp_path, step=3, attempt=1).iterdir()) == []


def test_quarantine_finds_a_free_name(tmp_path: Path) -> None:
    for _ in range(3):
        save(tmp_path, 3)
        quarantine(tmp_path / "step-3", step=3, attempt=1, reason="bad")
    names = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert names == [f"step-3.quarantined-1{end}" for end in ("", "-1", "-2")]
    assert has_history(tmp_path)


def test_quarantined_link_leaves_its_target(tmp_path: Path) -> None:
    path = save(tmp_path / "elsewhere", 3)
    (tmp_path / "step-3").symlink_to(path)
    moved = quarantine(tmp_path / "step-3", step=3, attempt=1, reason="bad")
    assert moved.is_symlink()
    assert sorted(p.name for p in path.iterdir()) == [
        ".metadata", SHARD, "inner", "manifest.json"
    ]  # fmt: skip


# -- retention -----------------------------------------------------------------------------------


def checkpoint(step: int, *, complete: bool = True) -> Checkpoint:
    return Checkpoint(step, Path(f"step-{step}"), complete, "" if complete else "broken")


@pytest.mark.parametrize(
    ("there", "keep_last", "keep_every", "gone"),
    [
        ([], 2, None, []),
        ([1], 2, None, []),
        ([1, 2], 2, None, []),
        ([3, 1, 2], 2, None, [1]),
        ([10, 20, 30, 40, 50], 2, 20, [10, 30]),
        ([0, 5, 10, 15], 2, 10, [5]),
        ([1, 2, 3, 4], 4, None, []),
    ],
)
def test_doomed(there: list[int], keep_last: int, keep_every: int | None, gone: list[int]) -> None:
    found = doomed([checkpoint(s) for s in there], keep_last=keep_last, keep_every=keep_every)
    assert [c.step for c in found] == gone


def test_broken_ones_push_no_good_one_out() -> None:
    broken = [checkpoint(step, complete=False) for step in (5, 6, 7, 8)]
    assert doomed([checkpoint(1), checkpoint(2), *broken], keep_last=2) == []


def test_one_is_too_few() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        doomed([], keep_last=1)


def test_retain_deletes_and_cleans(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    for name in ("step-9.tmp-1", "step-9.tmp-2", "step-9.tmp-3", "step-8.old-2", "step-7.old-3"):
        (tmp_path / name).mkdir()
    quarantine(tmp_path / "step-1", step=1, attempt=1, reason="bad")
    gone = retain(tmp_path, keep_last=2, attempt=2, allowed=always)
    assert gone == [2]
    left = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert left == [
        "step-1.quarantined-1",
        "step-3",
        "step-4",
        "step-7.old-3",
        "step-9.tmp-2",
        "step-9.tmp-3",
    ]


def test_retain_of_a_link_leaves_its_target(tmp_path: Path) -> None:
    path = save(tmp_path / "elsewhere", 1)
    (tmp_path / "step-1").symlink_to(path)
    save(tmp_path, 2)
    save(tmp_path, 3)
    assert retain(tmp_path, keep_last=2, attempt=1, allowed=always) == [1]
    assert not (tmp_path / "step-1").is_symlink()
    assert (path / SHARD).is_file()


def test_retain_asks_before_each_deletion(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    asked = []

    def once() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise CheckpointError("superseded")

    with pytest.raises(CheckpointError, match="superseded"):
        retain(tmp_path, keep_last=2, attempt=1, allowed=once)
    assert steps(tmp_path) == [4, 3, 2]


def test_retain_without_a_directory(tmp_path: Path) -> None:
    assert retain(tmp_path / "none", keep_last=2, attempt=1, allowed=always) == []
