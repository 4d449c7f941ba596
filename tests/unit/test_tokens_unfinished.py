"""The folder of an unfinished preparation: one at a time, and no shard of another plan."""

import json
import os
import socket
from pathlib import Path

import pytest

from orchestrator.errors import SpecError
from orchestrator.tokens.pieces import Piece, Span
from orchestrator.tokens.shard import HEADER_BYTES, ShardWriter
from orchestrator.tokens.unfinished import held, read_note, write_note, writing

PIECE = Piece(0, (Span("/a.jsonl", 0, 9),))


def make(part: Path) -> None:
    writer = ShardWriter(2)
    writer.add(range(5000))
    header, digest = writer.write(part / PIECE.file)
    done = {"file": PIECE.file, "tokens": header.tokens, "documents": 1, "largest": 4999}
    write_note(part, PIECE, {**done, "digest": digest, "skipped": 2}, plan="p")


def test_one_at_a_time(tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    owner = rf"process {os.getpid()} on {socket.gethostname()}"
    with held(part), pytest.raises(SpecError, match=owner), held(part):
        pass
    with held(part):  # free again
        assert json.loads((part / "lock").read_text())["pid"] == os.getpid()


def test_a_note_is_of_its_plan_and_its_shard(tmp_path: Path) -> None:
    make(tmp_path)
    found = read_note(tmp_path, PIECE, plan="p")
    assert found is not None
    assert (found[0].tokens, found[1]) == (5000, 2)
    assert read_note(tmp_path, PIECE, plan="of other options") is None
    with (tmp_path / PIECE.file).open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(b"other")
    assert read_note(tmp_path, PIECE, plan="p") is None


@pytest.mark.parametrize("text", ["5", "null", "[" * 100_000, '{"plan": "p"}', "\0"])
def test_notes_that_are_none(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "tokens-00000.json").write_text(text)
    assert read_note(tmp_path, PIECE, plan="p") is None


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    said = f"{tmp_path}: cannot be written: No space left on device; make room"
    with pytest.raises(SpecError, match=said), writing(tmp_path):
        raise OSError(28, "No space left on device")
