import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.weightfiles.finding import INDEX, find_weights, fingerprint


def write(path: Path, weights: dict[str, tuple[list[int], bytes]], *, dtype: str = "F32") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (shape, data) in weights.items():
        end = begin + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    data = b"".join(data for _, data in weights.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_where_weights_lie(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ([2, 1], b"12345678"), "b": ([], b"abcd")})
    found = find_weights(tmp_path)
    assert {name: entry.shape for name, entry in found.items()} == {"a": (2, 1), "b": ()}
    entry = found["b"]
    assert entry.path.read_bytes()[entry.begin : entry.begin + entry.length] == b"abcd"


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    for name in ("one", "two", "stray"):
        write(tmp_path / f"{name}.safetensors", {name: ([1], b"1234")})
    weight_map = {"one": "one.safetensors", "two": "two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert set(find_weights(tmp_path)) == {"one", "two"}
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(SpecError, match=r"two.safetensors is missing"):
        find_weights(tmp_path)


@pytest.mark.parametrize("target", ["../secret.safetensors", "/etc/passwd"])
def test_an_index_cannot_lead_outside(tmp_path: Path, target: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": target}}))
    with pytest.raises(SpecError, match=r"outside|missing"):
        find_weights(tmp_path)


def test_one_file_goes_before_strays(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ([1], b"1234")})
    write(tmp_path / "consolidated.safetensors", {"b": ([1], b"1234")})
    assert set(find_weights(tmp_path)) == {"a"}


def test_adapters_are_no_model(tmp_path: Path) -> None:
    write(tmp_path / "adapter_model.safetensors", {"a": ([1], b"1234")})
    with pytest.raises(SpecError, match=r"no .*safetensors files"):
        find_weights(tmp_path)


@pytest.mark.parametrize("keep", [3, 30, -1])
def test_cut_off(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {"a": ([2], b"12345678")})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SpecError, match=r"model.safetensors"):
        find_weights(tmp_path)


def test_a_length_that_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ([3], b"12345678")})
    with pytest.raises(SpecError, match="8 bytes are no F32"):
        find_weights(tmp_path)


def test_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(SpecError, match="save_pretrained"):
        find_weights(tmp_path)


def test_fingerprints(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "same", "other")]
    for folder, data in zip(folders, (b"1234", b"1234", b"1235"), strict=True):
        folder.mkdir()
        write(folder / "model.safetensors", {"a": ([1], data)})
    one, same, other = (fingerprint(folder) for folder in folders)
    assert one == same
    assert one != other


def write_header(path: Path, header: object, data: bytes = b"12345678") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WHOLE = entry("F32", [2], 0, 8)
TWICE = b'{"a": %(one)s, "a": %(one)s}' % {b"one": json.dumps(WHOLE).encode()}


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"a": entry("F32", [2], -8, 0)}, "no list of whole numbers"),
        ({"a": entry("F32", [2], 0, float("inf"))}, "no list of whole numbers"),
        ({"a": entry("F32", [2.0], 0, 8)}, "no list of whole numbers"),
        ({"a": entry("F32", ["2"], 0, 8)}, "no list of whole numbers"),
        ({"a": entry("F32", [-2, -1], 0, 8)}, "no list of whole numbers"),
        ({"a": entry("F32", [True], 0, 8)}, "no list of whole numbers"),
        ({"a": entry("F32", "2", 0, 8)}, "no list of whole numbers"),
        ({"a": entry(5, [2], 0, 8)}, "5 is no known type"),
        ({"a": entry("F33", [2], 0, 8)}, "'F33' is no known type"),
        ({"a": entry("F32", [2], 8, 0)}, "-8 bytes are no F32"),
        ({"a": WHOLE, "b": entry("F32", [1], 4, 8)}, "one after the other"),
        ({"a": entry("F32", [1], 4, 8)}, "one after the other"),
        ({"a": entry("F32", [1], 0, 4)}, "and should have"),
        ({"a": 5}, "damaged or no safetensors"),
        (TWICE, "'a' stands in it twice"),
        (b"[" * 100_000, "nests too deeply"),
        (b"[]", "must hold a JSON object"),
    ],
)
def test_headers_that_make_no_sense(tmp_path: Path, header: object, text: str) -> None:
    write_header(tmp_path / "model.safetensors", header)
    with pytest.raises(SpecError, match=rf"model.safetensors: .*{text}"):
        find_weights(tmp_path)


def test_headers_that_do(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {
        "b": entry("F4", [8], 4, 8),
        "__metadata__": {"format": "pt"},
        "a": entry("BF16", [1, 2], 0, 4),
        "none": entry("F32", [0, 5], 4, 4),
    }
    write_header(path, header)
    found = find_weights(tmp_path)
    assert {name: e.length for name, e in found.items()} == {"b": 4, "a": 4, "none": 0}
    assert found["a"].begin == path.stat().st_size - 8


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {}}, "has no weight_map"),
        ({"weight_map": ["a"]}, "has no weight_map"),
        ({"weight_map": {"a": 5}}, "names what is no file"),
        ({"weight_map": {"a": "x" * 5000}}, "names what is no file"),
        ({"weight_map": {"a": "\ud83d"}}, "names what is no file"),
        ({"weight_map": {"a": ""}}, "outside"),
        ([], "must hold a JSON object"),
        (b'{"a":' * 100_000, "nests too deeply"),
        (b"\xff", "cannot be read"),
    ],
)
def test_an_index_that_makes_no_sense(tmp_path: Path, content: object, text: str) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / INDEX).write_bytes(data)
    with pytest.raises(SpecError, match=f"{INDEX}: .*{text}"):
        find_weights(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(SpecError, match=r"x.safetensors: .* no ordinary file"):
        find_weights(tmp_path)
