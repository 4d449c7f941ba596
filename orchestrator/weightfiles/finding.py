"""Which weight lies where in the safetensors files of a directory. Knows no torch.

Source: https://github.com/huggingface/safetensors#format: eight bytes with the length of a JSON
header, the header, then the weights one after the other.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Bytes of a number. Sub-byte types (F4 and the like) are quantised weights, which are not trained.
SIZES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_MOST = 100 << 20
_SAMPLES = 64
_SAMPLE = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a weight lies.

    Attributes:
        path: The file.
        dtype: As the file spells it, such as BF16.
        shape: Of the whole weight.
        begin: Its first byte in the file.
        length: How many bytes it has.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    length: int


def find_weights(folder: Path) -> dict[str, Entry]:
    """Return where each weight in ``folder`` lies.

    Raises:
        SpecError: There are no such files, one of them is missing or cut off, or holds something
            else.
    """
    found: dict[str, Entry] = {}
    for path in _files(folder):
        try:
            entries = read_header(path)
        except OSError as problem:
            raise SpecError(f"{path}: cannot be read: {problem.strerror or problem}") from None
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as problem:
            raise SpecError(f"{path}: is damaged or no safetensors file: {problem}") from None
        found.update(entries)
    return found


def read_header(path: Path) -> dict[str, Entry]:
    """Return where each weight in the file lies.

    Raises:
        ValueError: It is cut off, or its header does not read.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _MOST):
            raise ValueError("its header is longer than the file")
        header: dict[str, Any] = json.loads(file.read(length))
    entries = {
        name: _entry(path, item, start=8 + length)
        for name, item in header.items()
        if name != "__metadata__"
    }
    end = max((entry.begin + entry.length for entry in entries.values()), default=0)
    if end > size:
        raise ValueError(f"it has {size} bytes and should have {end}; it was cut off")
    return entries


def fingerprint(folder: Path) -> str:
    """Return what stands for the weights in ``folder``, wherever that lies.

    Names, shapes, and places of all weights, and 64 samples of 4 KiB of each file: another
    fine-tune of the same model has the same sizes and other numbers. Costs milliseconds.

    Raises:
        SpecError: As `find_weights`.
        OSError: A file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    entries = find_weights(folder)
    for name, entry in sorted(entries.items()):
        told = f"{name} {entry.dtype} {entry.shape} {entry.path.name} {entry.begin}\n"
        digest.update(told.encode())
    for path in sorted({entry.path for entry in entries.values()}):
        size = path.stat().st_size
        with path.open("rb") as file:
            for number in range(_SAMPLES):
                file.seek(max(size - _SAMPLE, 0) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files that make up the model; others may lie beside them (consolidated, adapters).

    Raises:
        SpecError: There are none, or one is missing.
    """
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    found = sorted(path for path in folder.glob("*.safetensors") if "adapter" not in path.name)
    if found:
        return found
    other = "; it holds other formats: load it once with from_pretrained and save_pretrained"
    pickles = any(folder.glob("*.bin")) or any(folder.glob("*.pth"))
    raise SpecError(f"{folder} holds no *.safetensors files{other if pickles else ''}")


def _indexed(folder: Path) -> list[Path]:
    index = folder / INDEX
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise SpecError(f"{index}: cannot be read: {problem!r}") from None
    paths = sorted(folder / str(name) for name in names)
    for path in paths:
        if path.parent != folder:
            raise SpecError(f"{index}: names a file outside the directory: {path}")
        if not path.is_file():
            raise SpecError(f"{path} is missing, and {INDEX} names it; copy the directory again")
    return paths


def _entry(path: Path, item: dict[str, Any], *, start: int) -> Entry:
    begin, end = (int(offset) for offset in item["data_offsets"])
    shape = tuple(int(size) for size in item["shape"])
    dtype = str(item["dtype"])
    if dtype in SIZES and end - begin != prod(shape) * SIZES[dtype]:
        raise ValueError(f"{end - begin} bytes are no {dtype} of shape {list(shape)}")
    return Entry(path, dtype, shape, start + begin, end - begin)
