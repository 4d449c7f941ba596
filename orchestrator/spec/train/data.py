"""Which data: `train.data`, and `train.eval`."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from orchestrator.keys.counts import Count
from orchestrator.keys.fields import Line, Named, Strict
from orchestrator.spec.train.numbers import PositiveFloat

KINDS = ("text_files", "jsonl", "shards", "dataset")


def _several(given: list[str]) -> str:
    """Return which kinds stand beside one another, to begin a message with; "" where none does.

    >>> _several(["jsonl", "shards"]), _several([])
    ('jsonl and shards are both given; ', '')
    """
    if len(given) < 2:
        return ""
    both = "both" if len(given) == 2 else "all"
    return f"{', '.join(given[:-1])} and {given[-1]} are {both} given; "


class SourceSpec(Strict):
    """One source: text files, JSON lines, folders of token shards, or a dataset on disk.

    Patterns may name files or folders of `text_files` and `jsonl`. `field` is the key (of JSON
    lines) or column (of a dataset) that holds the text, or tokens.
    """

    text_files: tuple[Line, ...] = ()
    jsonl: tuple[Line, ...] = ()
    shards: tuple[Line, ...] = ()
    dataset: Line | None = None
    field: Line = "text"

    def given(self) -> list[str]:
        """Return which kinds it names."""
        return [kind for kind in KINDS if getattr(self, kind)]

    @property
    def kind(self) -> str:
        """What kind it is."""
        return self.given()[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """What it names."""
        found: str | tuple[str, ...] = getattr(self, self.kind)
        return (found,) if isinstance(found, str) else found

    def mapped(self, full: Callable[[str], str]) -> dict[str, Any]:
        """Return its paths, each put through ``full``."""
        several = {kind: tuple(map(full, getattr(self, kind))) for kind in KINDS[:3]}
        return {**several, "dataset": None if self.dataset is None else full(self.dataset)}


class WeightedSourceSpec(SourceSpec):
    """One of several sources; `weight` is its share of the samples beside the others' weights."""

    weight: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(given := self.given()) != 1:
            raise ValueError(f"{_several(given)}give one of {', '.join(KINDS)}, and not more")
        return self


class SourcesSpec(SourceSpec):
    """One source, or several under `sources`.

    Without weights several sources are one long row. With weights each has its share, however
    large it is: the smaller ones begin anew while the larger ones are not yet through.
    """

    sources: tuple[WeightedSourceSpec, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [*self.given(), *(["sources"] if self.sources else [])]
        if len(given) != 1:
            raise ValueError(
                f"{_several(given)}give one of {', '.join(KINDS)}, or several of them as a list"
                " under sources; text_files: [/data/*.txt] would do"
            )
        weights = [source.weight is not None for source in self.sources]
        if any(weights) and not all(weights):
            raise ValueError("sources: give a weight to each of them, or to none")
        return self

    def each(self) -> Iterator[SourceSpec]:
        """Yield the sources."""
        yield from self.sources or (self,)

    @property
    def patterns(self) -> tuple[str, ...]:
        """All files, folders and patterns that are read."""
        return tuple(path for source in self.each() for path in source.paths)

    def mapped(self, full: Callable[[str], str]) -> dict[str, Any]:
        """Return its paths, each put through ``full``."""
        inner = tuple(s.model_copy(update=s.mapped(full)) for s in self.sources)
        return {**super().mapped(full), "sources": inner}


class DataSpec(SourcesSpec):
    """Which text, cut into which length.

    Tokens are bytes (0 to 255), or those of `tokenizer`: a local folder with tokenizer.json, or
    `model` for that in `model.path`. Token shards have theirs already. What is neither shards nor
    text of bytes is made into shards in the run's folder by its first attempt.

    `packing: stream` cuts the row of all documents into samples, and tokens see what stands before
    them in the sample. With `documents` they see their own document alone, positions begin at 0 in
    each, and no document has to guess how the next one begins.

    `read_ahead` is how many steps are read before they are needed, by `readers` threads.
    """

    seq_len: Annotated[int, Field(ge=2, le=2**30, strict=True)]
    tokenizer: Named = "bytes"
    packing: Literal["stream", "documents"] = "stream"
    read_ahead: Annotated[int, Field(ge=0, le=64, strict=True)] = 2
    readers: Annotated[int, Field(ge=1, le=64, strict=True)] = 2

    def mapped(self, full: Callable[[str], str]) -> dict[str, Any]:
        """Return its paths, each put through ``full``."""
        plain = self.tokenizer in ("bytes", "model")
        tokenizer = self.tokenizer if plain else full(self.tokenizer)
        return {**super().mapped(full), "tokenizer": tokenizer}


class EvalSpec(SourcesSpec):
    """A validation set, and how often the loss on it is measured.

    Each time on the same `batches` global batches (or all there is), after every so many steps and
    after the last one. `tokenizer`, `seq_len` and `packing` are those of `data`.
    """

    every: Count = 500
    batches: Count = 16
