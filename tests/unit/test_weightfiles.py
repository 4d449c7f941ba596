import json
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
