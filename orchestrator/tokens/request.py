"""What a preparation is asked for, and which files it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.tokens.encoding import BYTES
from orchestrator.tokens.finding import Kind, dataset_files, find_files, signature
from orchestrator.tokens.index import Input


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be prepared.

    Attributes:
        kind: Of all that `paths` names.
        paths: Files, folders and patterns; of a dataset its one folder.
        field: The key or column that holds the text, or tokens.
        tokenizer: A folder, a tokenizer.json, or `bytes`.
        skip_bad: Leave out what cannot be read, and count it.
    """

    kind: Kind
    paths: tuple[str, ...]
    field: str = "text"
    tokenizer: str = BYTES
    skip_bad: bool = False


def inputs_of(request: Request, *, key: str = "input") -> list[Input]:
    """Return the files that a request reads, as they are now.

    Raises:
        SpecError: There are none, or they cannot be read.
    """
    try:
        if request.kind == "dataset":
            files = dataset_files(_one(request.paths, key), key=key)
        else:
            files = find_files(request.paths, key=key)
        return [signature(path) for path in files]
    except OSError as problem:
        raise SpecError(f"{key}: cannot be read: {problem}") from None


def _one(paths: Sequence[str], key: str) -> Path:
    if len(paths) != 1:
        raise SpecError(f"{key}: one dataset at a time; {len(paths)} were given")
    return Path(paths[0])


def told(request: Request, tokenizer: str) -> dict[str, Any]:
    """Return what makes two requests for the same files differ."""
    return {
        "kind": request.kind,
        "field": request.field,
        "tokenizer": tokenizer,  # by what it holds: its folder may be copied
        "skip_bad": request.skip_bad,
    }


def unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in what two requests differ, of what `told` tells of them."""
    return ", ".join(key for key in now if before.get(key) != now[key])
