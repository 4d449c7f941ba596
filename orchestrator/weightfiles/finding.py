"""Which weight lies where in the safetensors files of a directory. Knows no torch.

Source: https://github.com/huggingface/safetensors#format: eight bytes with the length of a JSON
header, the header, then the weights one after the other.
"""

import hashlib
import stat
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.weightfiles.texts import parse, read_object

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Types of numbers that weights are trained in; bits of all types that the format has.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64, "BOOL": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_MOST = 100 << 20
_SAMPLES = 64
_SAMPLE = 4096
_LONGEST = 255  # of a file's name, in bytes


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
    try:
        paths = _files(folder)
    except OSError as problem:
        raise SpecError(f"{folder}: cannot be read: {problem.strerror or problem}") from None
    for path in paths:
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
        ValueError: It is cut off, or its header does not read or does not fit it.
        OSError: It cannot be read.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no ordinary file")
    size = found.st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _MOST):
            raise ValueError("its header is longer than the file")
        header = parse(file.read(length), once=True)
    entries = {
        name: _entry(path, item, start=8 + length)
        for name, item in header.items()
        if name != "__metadata__"
    }
    _check_places(entries.values(), begin=8 + length, size=size)
    return entries


def _check_places(entries: Iterable[Entry], *, begin: int, size: int) -> None:
    """Refuse weights that overlap, or bytes between them or behind, as safetensors itself does."""
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.length)):
        if entry.begin != begin:
            raise ValueError("its weights do not lie one after the other")
        begin += entry.length
    if begin > size:
        raise ValueError(f"it has {size} bytes and should have {begin}; it was cut off")
    if begin < size:
        raise ValueError(f"it has {size} bytes and should have {begin}")


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
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise SpecError(f"{index}: has no weight_map, which says what lies where")
    names = list(named.values())
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > _LONGEST:
            raise SpecError(f"{index}: names what is no file: {str(name)[:_LONGEST]!r}")
    paths = sorted({folder / name for name in names})
    for path in paths:
        if path.parent != folder:
            raise SpecError(f"{index}: names a file outside the directory: {path}")
        if not path.is_file():
            raise SpecError(f"{path} is missing, and {INDEX} names it; copy the directory again")
    return paths


def _entry(path: Path, item: dict[str, Any], *, start: int) -> Entry:
    begin, end = _whole(item["data_offsets"])
    shape = _whole(item["shape"])
    dtype = item["dtype"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"{dtype!r} is no known type of numbers")
    if 8 * (end - begin) != prod(shape) * _BITS[dtype]:
        raise ValueError(f"{end - begin} bytes are no {dtype} of shape {list(shape)}")
    return Entry(path, dtype, shape, start + begin, end - begin)


def _whole(values: Any) -> tuple[int, ...]:
    """Return a list of sizes.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
        raise ValueError(f"{str(values)[:80]} is no list of whole numbers, 0 or more")
    return tuple(values)
