"""A process that turns pieces into shards: `python -m orchestrator.tokens.worker`.

It is told what to do in lines of JSON on stdin, and answers in lines of JSON on stdout. It ends
when stdin does, so it never outlives the process that started it.

    {"do": "describe", "tokenizer": T, "dataset": PATH or null}
        -> {"done": {"name": ..., "vocab_size": 49152, "rows": 1000 or null}}
    {"do": "piece", "kind": "jsonl", "key": "text", "width": 2, "skip_bad": false, "folder": DIR,
     "piece": {"file": "tokens-00000.bin", "spans": [...]}, "tokenizer": T}
        -> {"at": 1048576, "tokens": 250000}, ..., {"done": {"file": ..., "tokens": ..., ...}}
    both -> {"error": "one message"}
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.errors import FsdpqError, SpecError
from orchestrator.tokens.documents import (
    BadDocumentError,
    Document,
    dataset_rows,
    json_lines,
    text_document,
)
from orchestrator.tokens.encoding import Encoder, open_encoder
from orchestrator.tokens.index import ShardEntry
from orchestrator.tokens.shard import ShardWriter

_AT_ONCE = 1 << 20  # characters
_TOLD_EVERY_S = 0.5

encoder_of = cache(open_encoder)


@cache
def _dataset(path: str) -> Any:
    try:
        from datasets import disable_progress_bars, load_from_disk
    except ImportError:
        raise SpecError(
            f"{path}: needs the Python package datasets, which is missing here; install"
            " fsdpq[datasets], or name the Python that has it with --python"
        ) from None
    disable_progress_bars()
    try:
        return load_from_disk(path)
    except Exception as problem:
        # pyarrow and datasets have dozens of errors for a file that is not what it should be.
        raise SpecError(f"{path}: cannot be read as a dataset: {problem}") from None


class _Shard:
    """Collects the documents of one piece."""

    def __init__(self, order: dict[str, Any], told: "_Answers") -> None:
        self._encoder: Encoder = encoder_of(order["tokenizer"])
        self._order, self._told = order, told
        self._writer = ShardWriter(order["width"])
        self._texts: list[str] = []
        self._held = 0
        self.skipped = self.tokens = 0

    def add(self, document: Document | BadDocumentError, at: int) -> None:
        """Take a document, ``at`` so many bytes or rows of the piece."""
        if isinstance(document, BadDocumentError):
            self._skip(document)
        elif isinstance(document, list):
            self.flush()
            self._add(document)
        elif isinstance(document, bytes) or self._encoder.encode is None:
            content = document if isinstance(document, bytes) else document.encode()
            self._writer.add_bytes(content)
            self.tokens += len(content)
        else:
            self._texts.append(document)
            self._held += len(document)
            if self._held >= _AT_ONCE:
                self.flush()
        self._told.progress(at, self.tokens)

    def _skip(self, problem: BadDocumentError) -> None:
        if not self._order["skip_bad"]:
            raise problem
        self.skipped += 1

    def _add(self, tokens: list[int]) -> None:
        if tokens and max(tokens) >= self._encoder.vocab_size:
            raise SpecError(
                f"{self._order['piece']['spans'][0]['path']}: holds the token {max(tokens)}, which"
                f" is beyond the tokenizer's vocabulary of {self._encoder.vocab_size}; name the"
                " tokenizer that made these tokens"
            )
        self._writer.add(tokens)
        self.tokens += len(tokens)

    def flush(self) -> None:
        """Encode what has been collected."""
        encoder, texts = self._encoder, [text for text in self._texts if text]
        if texts and encoder.encode is not None:
            for ids in encoder.encode(texts):
                self._add([*encoder.prefix, *ids, *encoder.suffix])
        self._texts, self._held = [], 0

    def write(self) -> dict[str, Any]:
        """Write the shard, then what there is to say of it."""
        self.flush()
        folder, name = Path(self._order["folder"]), self._order["piece"]["file"]
        header, digest = self._writer.write(folder / name)
        entry = ShardEntry(
            file=name,
            tokens=header.tokens,
            documents=header.documents,
            largest=header.largest,
            digest=digest,
        )
        return {**asdict(entry), "skipped": self.skipped}


def _documents(order: dict[str, Any]) -> Iterator[tuple[Document | BadDocumentError, int]]:
    base, kind, key = 0, order["kind"], order["key"]
    for span in order["piece"]["spans"]:
        path, begin, end = span["path"], span["begin"], span["end"]
        if kind == "jsonl":
            for read, document in json_lines(Path(path), begin, end, key=key):
                yield document, base + min(read, end - begin)
        elif kind == "dataset":
            rows = dataset_rows(_dataset(path), begin, end, path=path, key=key)
            for number, document in enumerate(rows, start=1):
                yield document, base + number
        else:
            yield _text(path, order["tokenizer"], end - begin), base + end - begin
        base += end - begin


def _text(path: str, tokenizer: str, size: int) -> Document | BadDocumentError:
    as_bytes = encoder_of(tokenizer).encode is None
    try:
        return text_document(Path(path), as_bytes=as_bytes, size=size)
    except BadDocumentError as problem:
        return problem


class _Answers:
    """Lines of JSON to whoever gave the order."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._next = 0.0

    def send(self, answer: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(answer) + "\n").encode())

    def progress(self, at: int, tokens: int) -> None:
        """Say how far the piece is, now and then."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _TOLD_EVERY_S
            self.send({"at": at, "tokens": tokens})


def _describe(order: dict[str, Any]) -> dict[str, Any]:
    encoder = encoder_of(order["tokenizer"])
    dataset = order["dataset"]
    rows = None if dataset is None else len(_dataset(dataset))
    return {"name": encoder.name, "vocab_size": encoder.vocab_size, "rows": rows}


def _piece(order: dict[str, Any], answers: _Answers) -> dict[str, Any]:
    shard = _Shard(order, answers)
    for document, at in _documents(order):
        shard.add(document, at)
    return shard.write()


def _read_by(order: dict[str, Any]) -> str:
    """Return what an order reads, for people."""
    paths = [span["path"] for span in order.get("piece", {}).get("spans", ())]
    if not paths:
        return str(order.get("dataset") or order["tokenizer"])
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} or one of those up to {paths[-1]}"


def obey(order: dict[str, Any], answers: _Answers) -> None:
    """Do what one line asks for, and answer."""
    try:
        done = _describe(order) if order["do"] == "describe" else _piece(order, answers)
    except (FsdpqError, OSError) as problem:
        answers.send({"error": str(problem)})
    except MemoryError:
        answers.send({"error": "no memory left; use fewer --workers"})
    except Exception as problem:
        # A tokenizer or pyarrow may raise anything; the order says where it was.
        text = f"{_read_by(order)}: cannot be made into tokens: {problem!r}"
        answers.send({"error": text})
    else:
        answers.send({"done": done})


def main() -> None:
    """Obey until stdin ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    os.environ["HF_HUB_OFFLINE"] = "1"
    answers = _Answers(os.dup(1))
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        obey(json.loads(line), answers)


if __name__ == "__main__":
    main()
