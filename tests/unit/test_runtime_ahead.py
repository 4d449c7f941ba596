"""Hashing the newest checkpoint while the script imports torch."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from orchestrator.checkpoint import hashing, read_manifest
from orchestrator.checkpoint.hashing import Hashed, hash_file, parse, sha256_of
from orchestrator.errors import CheckpointError
from orchestrator.runtime.ahead import Ahead

from .runs import environment, flip, make_run, save


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that were hashed by the process that asks."""
    read: list[str] = []

    def count(file: IO[bytes]) -> Hashed:
        read.append(Path(file.name).name)
        return hash_file(file)

    monkeypatch.setattr(hashing, "hash_file", count)
    return read


def begun(root: Path, *, rank: int = 0, world_size: int = 1) -> Ahead:
    one = Ahead()
    one.begin(environment(root, attempt=2, rank=rank, world_size=world_size))
    return one


def test_what_was_hashed_ahead_is_not_hashed_again(tmp_path: Path, counted: list[str]) -> None:
    path = save(make_run(tmp_path), 1)
    one = begun(tmp_path)
    one.wait()
    for name, entry in read_manifest(path).files.items():
        assert one.known(path / name) == entry.sha256
    assert counted == []


def test_nothing_is_known_of_a_file_that_changed_since(tmp_path: Path) -> None:
    path = save(make_run(tmp_path), 1) / "data"
    one = begun(tmp_path)
    one.wait()
    fresh = path.with_name("fresh")
    fresh.write_bytes(b"another")
    fresh.replace(path)
    assert one.known(path) is None


def test_a_process_that_was_killed_costs_nothing_but_time(tmp_path: Path) -> None:
    save(make_run(tmp_path), 1)
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead()
    run._ahead.give_up()
    found = run.resume()
    assert found is not None
    assert found.step == 1


def test_without_a_checkpoint_there_is_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    begun(tmp_path).wait()
    (tmp_path / "checkpoints").write_text("a file")  # cannot be listed
    begun(tmp_path).wait()


def test_resume_goes_by_what_was_hashed_ahead(tmp_path: Path, counted: list[str]) -> None:
    save(make_run(tmp_path), 1)
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead()
    found = run.resume()
    assert found is not None
    assert found.step == 1
    assert counted == []


def test_resume_still_finds_a_flipped_bit(tmp_path: Path) -> None:
    flip(save(make_run(tmp_path), 1) / "data")
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead()
    with pytest.raises(CheckpointError, match="hash differs"):
        run.resume()


def test_a_file_spoilt_after_it_was_hashed_is_found(tmp_path: Path) -> None:
    path = save(make_run(tmp_path), 1) / "data"
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead()
    run._ahead.wait()
    flip(path)
    os.utime(path)  # also where the clock of the file system is coarse
    with pytest.raises(CheckpointError, match="hash differs"):
        run.resume()


def test_a_wrong_word_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_run(tmp_path), 1)
    run = make_run(tmp_path, attempt=2)
    monkeypatch.setattr(run._ahead, "known", lambda path: sha256(b"what was not there yet"))
    found = run.resume()
    assert found is not None
    assert found.step == 1


def test_lengths_alone_need_no_hashes(tmp_path: Path) -> None:
    save(make_run(tmp_path), 1)
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead()
    assert run.resume(verify="size") is not None
    assert run._ahead._process is None


def test_copies_are_hashed_instead_of_what_they_are_of(tmp_path: Path, counted: list[str]) -> None:
    path = save(make_run(tmp_path), 1) / "data"
    copy = tmp_path / "a copy"
    copy.write_bytes(path.read_bytes())
    run = make_run(tmp_path, attempt=2)
    run.verify_ahead(lambda _, files: {"data": copy.open("rb")})
    assert run.resume() is not None
    assert "data" in counted  # nobody but resume has asked for it
    right = sha256_of(path)
    counted.clear()
    with copy.open("rb") as file:
        file.seek(3)
        assert run.known_hash(file) == right
    assert counted == []


def test_the_program_passes_over_what_it_cannot_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a b"
    path.write_bytes(b"text")
    hashing.main([str(os.getppid()), str(path), str(tmp_path / "gone")])
    lines = capfd.readouterr().out.splitlines()
    with path.open("rb") as file:
        assert [parse(line) for line in lines] == [hash_file(file)]


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '{"sha256": "x"}', '{"sha256": "x", "state": [1, 2]}']
)
def test_half_a_line_says_nothing(line: str) -> None:
    assert parse(line) is None


def test_the_program_ends_with_whoever_started_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")  # opening it waits for a writer
    asks = (
        "import os, subprocess, sys; print(subprocess.Popen([sys.executable, '-m',"
        f" 'orchestrator.checkpoint.hashing', str(os.getpid()), {str(tmp_path / 'never')!r}],"
        " stdout=-3, stderr=-3).pid)"
    )
    said = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{int(said.stdout)}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_program_is_light() -> None:
    """It must not import what the script imports meanwhile."""
    code = "import sys, orchestrator.checkpoint.hashing; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
