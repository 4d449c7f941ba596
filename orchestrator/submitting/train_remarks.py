"""What looks like a mistake in `train:`, and may be none: what it names, and keys that do nothing.

All of it is noted and nothing refused: the nodes may see files that this machine does not. Knows no
torch; of data only names and the index of token shards are looked at.
"""

from collections.abc import Iterator
from glob import iglob
from pathlib import Path

from pydantic import BaseModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import SourcesSpec, TrainSpec
from orchestrator.submitting import model_remarks
from orchestrator.tokens.index import read_index

_SEE_MORE = "do the nodes see more?"


def of_train(train: TrainSpec) -> Iterator[str]:
    """Yield a sentence on each, for people; paths in ``train`` are absolute."""
    yield from _of_sources(train.data, "train.data")
    if train.eval is not None:
        yield from _of_sources(train.eval, "train.eval")
    if train.data.tokenizer not in ("bytes", "model") and not _exists(train.data.tokenizer):
        yield (
            f"train.data.tokenizer: there is no folder {train.data.tokenizer} here, and a name on"
            f" the Hub is not downloaded; {_SEE_MORE}"
        )
    yield from model_remarks.of_model(train)
    yield from _of_idle_keys(train)


def _of_sources(given: SourcesSpec, key: str) -> Iterator[str]:
    for number, source in enumerate(given.each()):
        place = f"{key}.sources.{number}" if given.sources else key
        for path in source.paths:
            yield from _of_path(path, source.kind, f"{place}.{source.kind}")
        if _is_set(source, "field") and source.kind in ("text_files", "shards"):
            yield (
                f"{place}.field: does nothing beside {source.kind}; it names what holds the text in"
                " jsonl or dataset"
            )


def _of_path(path: str, kind: str, key: str) -> Iterator[str]:
    """Yield what is wrong with a path; only those of text and JSON lines may be patterns."""
    if kind in ("text_files", "jsonl"):
        if next(iglob(path, recursive=True), None) is None:  # noqa: PTH207 (an absolute pattern)
            yield f"{key}: nothing matches {path} here; {_SEE_MORE}"
    elif not _exists(path):
        yield f"{key}: there is no folder {path} here; {_SEE_MORE}"
    elif kind == "shards":
        try:
            read_index(Path(path))
        except SpecError as problem:
            yield f"{key}: {problem}"


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that is too long, a folder that is closed
        return False


def _of_idle_keys(train: TrainSpec) -> Iterator[str]:
    """Yield keys that were set and change nothing beside the others."""
    if train.warmup_steps >= train.steps:
        yield (
            f"train.warmup_steps: {train.warmup_steps} is not below steps: {train.steps}, so the"
            " learning rate never reaches lr"
        )
    if train.lr_schedule == "constant" and _is_set(train, "min_lr_ratio"):
        yield "train.min_lr_ratio: does nothing with lr_schedule: constant"
    if train.nonfinite == "stop" and _is_set(train, "nonfinite_limit"):
        yield "train.nonfinite_limit: does nothing without nonfinite: skip"
    if train.checkpoint.every_steps != "auto":
        for key in ("mtbf_s", "max_interval_s"):
            if _is_set(train.checkpoint, key):
                yield f"train.checkpoint.{key}: does nothing without every_steps: auto"


def _is_set(part: BaseModel, key: str) -> bool:
    """Return whether a key has another value than its default: a default written out is no slip."""
    return bool(getattr(part, key) != type(part).model_fields[key].default)
