"""Text to tokens: bytes, or a tokenizer from a local folder. Nothing is downloaded."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError

BYTES = "bytes"
_PROBE = "a"
_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A tokenizer, and what it puts around a document.

    Attributes:
        name: `bytes`, or the digest of the tokenizer's files.
        vocab_size: All tokens are below.
        prefix: Before each document: what the tokenizer itself puts there, such as BOS.
        suffix: Behind each document: what the tokenizer puts there, and EOS at any rate.
        encode: Texts to tokens, without the special ones. None where tokens are bytes.
    """

    name: str
    vocab_size: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    encode: Callable[[Sequence[str]], list[list[int]]] | None = None


def tokenizer_digest(path: Path) -> str:
    """Return what stands for the tokenizer in the folder (or file) ``path``.

    Raises:
        SpecError: There is none.
    """
    files = [path] if path.is_file() else [path / name for name in _FILES]
    there = [file for file in files if file.is_file()]
    if not there:
        raise SpecError(f"tokenizer: {path} holds none of {', '.join(_FILES[:3])}")
    digest = blake2b(digest_size=16)
    # tokenizer.json says everything; the older files are asked only where it is missing.
    for file in there[:1] if there[0].suffix == ".json" else there:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def open_encoder(tokenizer: str) -> Encoder:
    """Return the tokenizer in the folder or file ``tokenizer``, or the one of bytes.

    Raises:
        SpecError: It does not read, or the package for it is missing.
    """
    if tokenizer == BYTES:
        return Encoder(name=BYTES, vocab_size=256)
    path = Path(tokenizer)
    name = tokenizer_digest(path)
    file = path if path.is_file() else path / "tokenizer.json"
    try:
        return _fast(file, name) if file.is_file() else _slow(path, name)
    except ImportError as problem:
        raise SpecError(
            f"tokenizer: {path} needs the Python package {problem.name}, which is missing here;"
            " install fsdpq[train], or name the Python that has it with --python"
        ) from None
    except Exception as problem:
        # tokenizers raises plain Exception for a file that it cannot read.
        raise SpecError(f"tokenizer: {path} cannot be used: {problem}") from None


def _fast(file: Path, name: str) -> Encoder:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    # A tokenizer.json may say that texts are to be cut off or filled up, which is for inference.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    around = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    prefix, suffix = _around(around, encode([_PROBE])[0])
    eos = tokenizer.token_to_id(_word(file.parent, "eos_token") or "")
    return Encoder(
        name=name,
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        prefix=prefix,
        suffix=_with_eos(suffix, eos),
        encode=encode,
    )


def _slow(path: Path, name: str) -> Encoder:
    """Return a tokenizer that has no tokenizer.json."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=False
    )

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return found

    prefix, suffix = _around(tokenizer(_PROBE)["input_ids"], encode([_PROBE])[0])
    return Encoder(
        name=name,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        prefix=prefix,
        suffix=_with_eos(suffix, tokenizer.eos_token_id),
        encode=encode,
    )


def _around(whole: list[int], plain: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what stands before and behind ``plain`` in ``whole``; the first place counts."""
    for begin in range(len(whole) - len(plain) + 1):
        end = begin + len(plain)
        if whole[begin:end] == plain:
            return tuple(whole[:begin]), tuple(whole[end:])
    return (), ()


def _with_eos(suffix: tuple[int, ...], eos: int | None) -> tuple[int, ...]:
    return suffix if eos is None or suffix[-1:] == (eos,) else (*suffix, eos)


def _word(folder: Path, key: str) -> str | None:
    """Return a special word from tokenizer_config.json; None if nothing says it."""
    try:
        value = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    word = value.get("content") if isinstance(value, dict) else value
    return word if isinstance(word, str) else None
