"""Token shards: the format, the pieces, the reading of sources, what is bad in them."""

import gzip
import json
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.tokens.documents import BadDocumentError, Document, json_lines, text_document
from orchestrator.tokens.encoding import BYTES, _around, _with_eos, open_encoder
from orchestrator.tokens.finding import (
    changed,
    dataset_files,
    find_files,
    find_folders,
    kind_of,
    signature,
)
from orchestrator.tokens.index import Index, Input, ShardEntry, check_shards, read_index
from orchestrator.tokens.pieces import Span, cut_files, cut_rows
from orchestrator.tokens.shard import ShardWriter, digest_of, read_header

# -- format ----------------------------------------------------------------------------------------


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    writer = ShardWriter(2)
    writer.add([1, 2, 300])
    writer.add([])
    writer.add([7])
    header, digest = writer.write(tmp_path / "a.bin")
    raw = (tmp_path / "a.bin").read_bytes()
    assert raw[:8] == b"FSDPQTOK"
    assert struct.unpack("<IIQQQ", raw[8:40]) == (1, 2, 4, 2, 300)
    assert raw[40:64] == bytes(24)
    assert struct.unpack("<4H", raw[64:72]) == (1, 2, 300, 7)
    assert struct.unpack("<2Q", raw[72:]) == (3, 4)
    assert header == read_header(tmp_path / "a.bin")
    assert digest == digest_of(tmp_path / "a.bin")
    assert os.listdir(tmp_path) == ["a.bin"]  # noqa: PTH208


def test_odd_lengths_are_filled_up(tmp_path: Path) -> None:
    writer = ShardWriter(1)
    writer.add_bytes(b"hello")
    header, _ = writer.write(tmp_path / "a.bin")
    assert header.nbytes == 64 + 8 + 8 == (tmp_path / "a.bin").stat().st_size


def test_a_token_that_does_not_fit() -> None:
    with pytest.raises(OverflowError):
        ShardWriter(2).add([65536])


def shard(path: Path, *documents: list[int], width: int = 2) -> ShardEntry:
    writer = ShardWriter(width)
    for document in documents:
        writer.add(document)
    header, digest = writer.write(path)
    return ShardEntry(
        file=path.name,
        tokens=header.tokens,
        documents=header.documents,
        largest=header.largest,
        digest=digest,
    )


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda raw: raw[:-1], r"a\.bin: has 87 bytes, but its header says 88 \(4 tokens"),
        (lambda raw: raw + b"x", "has 89 bytes"),
        (lambda raw: raw[:20], "is no token shard"),
        (lambda raw: b"", "is no token shard"),
        (lambda raw: b"GGUF" + raw[4:], "is no token shard"),
        (lambda raw: raw[:8] + b"\2" + raw[9:], "version 2"),
    ],
)
def test_damaged_shards(tmp_path: Path, damage: Any, text: str) -> None:
    path = tmp_path / "a.bin"
    shard(path, [1, 2], [3, 4])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SpecError, match=text):
        read_header(path)


def folder(path: Path) -> Index:
    path.mkdir()
    index = Index(
        width=2,
        vocab_size=400,
        tokenizer="digest",
        shards=(shard(path / "a.bin", [1, 2]), shard(path / "b.bin", [3])),
        inputs=(Input(path="/x", size=1, sample="s"),),
    )
    (path / "index.json").write_text(json.dumps(index.to_json()))
    return index


def test_an_index_reads_back(tmp_path: Path) -> None:
    index = folder(tmp_path / "out")
    assert read_index(tmp_path / "out") == index
    assert (index.tokens, index.documents) == (3, 2)
    check_shards(tmp_path / "out", index, whole=True)


def test_a_flipped_bit_is_found_if_asked(tmp_path: Path) -> None:
    index = folder(tmp_path / "out")
    raw = bytearray((tmp_path / "out/b.bin").read_bytes())
    raw[64] ^= 1
    (tmp_path / "out/b.bin").write_bytes(raw)
    check_shards(tmp_path / "out", index)
    with pytest.raises(SpecError, match=r"b\.bin: its bytes have changed"):
        check_shards(tmp_path / "out", index, whole=True)


def test_a_shard_of_another_folder(tmp_path: Path) -> None:
    index = folder(tmp_path / "out")
    shard(tmp_path / "out/b.bin", [3, 4])
    with pytest.raises(SpecError, match="is not the shard that"):
        check_shards(tmp_path / "out", index)
    (tmp_path / "out/b.bin").unlink()
    with pytest.raises(SpecError, match=r"b\.bin: cannot be read"):
        check_shards(tmp_path / "out", index)


def test_folders_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "out.part").mkdir()
    with pytest.raises(SpecError, match="is not finished"):
        read_index(tmp_path / "out")
    with pytest.raises(SpecError, match="holds no token shards"):
        read_index(tmp_path)
    (tmp_path / "index.json").write_text('{"format": "other", "version": 1}')
    with pytest.raises(SpecError, match="is no index of token shards"):
        read_index(tmp_path)


# -- pieces ----------------------------------------------------------------------------------------

MIB = 1 << 20


def test_pieces_cover_everything_once() -> None:
    sizes = [("a", 40 * MIB + 3), ("b", 5), ("c", 30 * MIB)]
    pieces = cut_files(sizes, divisible=True)
    spans = [span for piece in pieces for span in piece.spans]
    for path, size in sizes:
        of = [span for span in spans if span.path == path]
        assert of[0].begin == 0
        assert of[-1].end == size
        assert all(a.end == b.begin for a, b in pairwise(of))
    assert [piece.size for piece in pieces[:-1]] == [16 * MIB] * (len(pieces) - 1)
    assert [piece.number for piece in pieces] == [*range(len(pieces))]


def test_texts_stay_whole() -> None:
    pieces = cut_files([("a", 40 * MIB), ("b", 5), ("c", 7)], divisible=False)
    assert [piece.spans for piece in pieces] == [
        (Span("a", 0, 40 * MIB),),
        (Span("b", 0, 5), Span("c", 0, 7)),
    ]


def test_shards_of_a_large_source_are_not_too_many() -> None:
    assert len(cut_files([("a", 1 << 40)], divisible=True)) == 4096
    assert len(cut_rows("d", 10**9)) in (4096, 4097)


# -- documents -------------------------------------------------------------------------------------


def lines_of(path: Path, begin: int = 0, end: int | None = None) -> Iterator[Any]:
    end = path.stat().st_size if end is None else end
    for _, document in json_lines(path, begin, end, key="text"):
        yield document


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def test_json_lines_wherever_they_are_cut(tmp_path: Path) -> None:
    texts = ["one", "", "drei äöü 💡", "x" * 50, "five"]
    path = write_lines(tmp_path / "a.jsonl", *({"text": text, "n": 1} for text in texts))
    size = path.stat().st_size
    for cut in range(size + 1):
        found: list[Document] = [*lines_of(path, 0, cut), *lines_of(path, cut, size)]
        assert found == texts


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}')
    assert list(lines_of(tmp_path / "a.jsonl")) == ["a", "b"]


def test_tokens_instead_of_text(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", {"text": [1, 2, 3]}, {"text": [1, -2]}, {"text": [1.5]}
    )
    good, *bad = lines_of(path)
    assert good == [1, 2, 3]
    assert all("neither text nor tokens" in str(one) for one in bad)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "half a', "line 3: the last line is torn: .* still being written"),
        (b"plain text\n", "line 3: is no JSON"),
        (b'{"text": "\xff"}\n', r"line 3: is not UTF-8 \(byte 0xff, the 11\. of the line"),
        (b'{"body": "x"}\n', "line 3: has no key 'text' .there are: 'body'.; name one as field"),
        (b'["x"]\n', "line 3: must be a JSON object"),
        (b'{"text": null}\n', "line 3: 'text' holds neither text nor tokens but NoneType"),
        (b"[" * 100_000 + b"\n", "line 3: is no JSON"),
    ],
)
@pytest.mark.parametrize("begin", [0, 15])
def test_bad_lines_are_named(tmp_path: Path, line: bytes, text: str, begin: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b"}\n' + line)
    *good, bad = lines_of(path, begin)
    assert good == (["a", "b"] if begin == 0 else [])
    assert isinstance(bad, BadDocumentError)
    with pytest.raises(BadDocumentError, match=f"a.jsonl, {text}"):
        raise bad


def test_compressed_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000 + b"{"))
    *good, bad = lines_of(path)
    assert good == ["a"] * 1000
    assert f"{path}, line 1001" in str(bad)
    path.write_bytes(gzip.compress(os.urandom(5000))[:-2000])
    with pytest.raises(SpecError, match="is cut off"):
        list(lines_of(path))
    path.write_bytes(b"plain")
    with pytest.raises(SpecError, match="no gzip file"):
        list(lines_of(path))


def test_a_text_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\xfe\n")
    assert text_document(path, as_bytes=True) == b"one\ntwo\xfe\n"
    with pytest.raises(BadDocumentError, match=r"a\.txt, line 2: is not UTF-8 \(byte 0xfe"):
        text_document(path, as_bytes=False)


# -- finding ---------------------------------------------------------------------------------------


def test_empty_files_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(SpecError, match=r"a\.txt is empty"):
        find_files([str(tmp_path / "*.txt")])
    (tmp_path / "b.txt").touch()
    with pytest.raises(SpecError, match="all 2 files are empty"):
        find_files([str(tmp_path / "*.txt")])


def test_changes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * 10_000)
    before = [signature(path)]
    assert changed(before, [signature(path)]) == ""
    path.write_bytes(b"a" * 9_999 + b"b")
    assert changed(before, [signature(path)]) == f"{path} has other contents"
    path.write_bytes(b"a")
    assert changed(before, [signature(path)]) == f"{path} has 1 bytes and had 10,000"
    assert changed(before, []) == f"{path} is gone"
    assert changed([], before) == f"{path} is new"


def test_kinds_go_by_names(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds/state.json").write_text("{}")
    assert kind_of(tmp_path / "ds") == "dataset"
    assert kind_of(tmp_path / "a.jsonl.gz") == "jsonl"
    assert kind_of(tmp_path / "a.md") == "text_files"


def test_datasets_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no dataset that save_to_disk"):
        dataset_files(tmp_path)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SpecError, match=r"several splits; give one of them: .*/\{train,test\}"):
        dataset_files(tmp_path)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pytest.raises(SpecError, match=r"data\.arrow is missing"):
        dataset_files(tmp_path)
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(SpecError, match=r"state\.json: cannot be used"):
        dataset_files(tmp_path)


# -- tokenizers ------------------------------------------------------------------------------------


def test_bytes_need_no_package() -> None:
    encoder = open_encoder(BYTES)
    assert (encoder.name, encoder.vocab_size, encoder.encode) == ("bytes", 256, None)


def test_what_a_tokenizer_puts_around_a_text() -> None:
    assert _around([1, 9, 8, 2], [9, 8]) == ((1,), (2,))
    assert _around([9], [9]) == ((), ())
    assert _around([3], [9]) == ((), ())
    assert _with_eos((), 2) == (2,)
    assert _with_eos((2,), 2) == (2,)
    assert _with_eos((), None) == ()


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"holds none of tokenizer\.json"):
        open_encoder(str(tmp_path))
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="cannot be used"):
        open_encoder(str(tmp_path))


# -- what is odd -----------------------------------------------------------------------------------


def test_a_file_that_shrank_is_not_taken_for_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SpecError, match=r"a\.jsonl: ends at byte 14 and had 50; it changed"):
        list(json_lines(tmp_path / "a.jsonl", 0, 50, key="text"))
    with pytest.raises(SpecError, match=r"has 14 bytes and had 50"):
        text_document(tmp_path / "a.jsonl", as_bytes=True, size=50)


def test_half_a_surrogate_pair_is_a_bad_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine \\ud83d\\ude00"}\n{"text": "half \\ud83d"}\n')
    (_, fine), (_, bad) = json_lines(path, 0, path.stat().st_size, key="text")
    assert fine == "fine \U0001f600"
    assert isinstance(bad, BadDocumentError)
    assert "a.jsonl, line 2: 'text' holds half of a surrogate pair (\\ud83d, character 5)" in str(
        bad
    )


def test_a_compressed_file_is_read_as_far_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"text": os.urandom(500).hex()}) for _ in range(6000)]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    size = path.stat().st_size
    reads = [read for read, _ in json_lines(path, 0, size, key="text")]
    assert reads == sorted(reads)
    assert reads[0] < size / 2 < reads[-1] <= size


def test_a_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "z.txt").write_text("text")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "zz.txt").hardlink_to(tmp_path / "z.txt")
    patterns = [f"{tmp_path}/**/*.txt", f"{tmp_path}/z.txt", f"{tmp_path}/loop/z.txt"]
    assert find_files(patterns) == [tmp_path / "z.txt"]


def test_what_is_no_file_is_called_by_its_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name, text in [("pipe", "a FIFO"), ("/dev/zero", "a device"), ("empty", "without files")]:
        with pytest.raises(SpecError, match=text):
            find_files([str(tmp_path / name)])


def test_patterns_name_folders_of_shards(tmp_path: Path) -> None:
    for name in ("b", "a", "c.part", "[x]"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    found = find_folders([f"{tmp_path}/[x]", f"{tmp_path}/[abc]*", f"{tmp_path}/none"])
    assert [path.name for path in found] == ["[x]", "a", "b", "none"]
    with pytest.raises(SpecError, match=r"data\.shards: no folder matches"):
        find_folders([f"{tmp_path}/q*"])


@pytest.mark.parametrize("change", [{"digest": None}, {"tokens": -1}, {"file": "../a.bin"}])
def test_an_index_is_looked_at(tmp_path: Path, change: dict[str, Any]) -> None:
    folder(tmp_path / "s")
    data = json.loads((tmp_path / "s/index.json").read_text())
    data["shards"][0].update(change)
    (tmp_path / "s/index.json").write_text(json.dumps(data))
    with pytest.raises(SpecError, match="is no index of token shards"):
        read_index(tmp_path / "s")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "5", '{"_data_files": 5}'])
def test_deep_or_odd_json_is_one_message(tmp_path: Path, text: str) -> None:
    for name in ("index.json", "state.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=r"index\.json: is no index"):
        read_index(tmp_path)
    with pytest.raises(SpecError, match=r"state\.json: cannot be used"):
        dataset_files(tmp_path)
