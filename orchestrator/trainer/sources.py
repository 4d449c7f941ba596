"""Opens what `train.data` names. What cannot be mapped as it is becomes shards in the run's folder.

That is done once, by the first attempt: rank 0 has worker processes do it, the other ranks look at
the notices with it once a second, so a preempted run stops in time and goes on where it was.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from orchestrator.checkpoint.durable import write_json
from orchestrator.errors import FsdpqError, SpecError
from orchestrator.runtime import Notice, Run
from orchestrator.spec.train import SourceSpec, SourcesSpec, TrainSpec
from orchestrator.tokens.encoding import BYTES, tokenizer_digest
from orchestrator.tokens.finding import Kind, changed, find_folders, signature
from orchestrator.tokens.index import Index, Input, read_index
from orchestrator.tokens.preparing import prepare
from orchestrator.tokens.progress import Progress
from orchestrator.tokens.request import Request, inputs_of
from orchestrator.trainer.corpus import Corpus, join, open_corpus, open_shards
from orchestrator.trainer.keys import under
from orchestrator.trainer.metrics import Console
from orchestrator.trainer.row import TokenRow
from orchestrator.trainer.world import World

_LOOK_S = 1.0
_TELL_S = 10.0
# Making shards is bounded by nothing but the data; that it goes on is seen in the log.
_LIMIT_S = 7 * 86400.0
_RECORD = "inputs.json"
# Of a node that is gone a file server keeps locks for a minute and a half.
_PATIENCE_S = 180.0


class NoticeError(FsdpqError):
    """A notice came while data were being made ready.

    Attributes:
        notice: The notice.
    """

    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        super().__init__(f"{notice.signal} while data were being made ready")


def open_data(
    run: Run, spec: TrainSpec, world: World, console: Console
) -> tuple[Corpus, Corpus | None]:
    """Return what is trained on, and what the loss is measured on (None without). Collective.

    Raises:
        SpecError: A source cannot be used.
        NoticeError: All ranks are to stop.
    """
    opener = _Opener(run, spec, world, console)
    corpus = opener.open(spec.data, "train", key="data")
    held_out = None if spec.eval is None else opener.open(spec.eval, "eval", key="eval")
    for note in notes(spec, corpus):
        console.say(f"note: {note}")
    return corpus, held_out


class _Opener:
    def __init__(self, run: Run, spec: TrainSpec, world: World, console: Console) -> None:
        self._run, self._spec, self._world, self._console = run, spec, world, console

    def open(self, sources: SourcesSpec, name: str, *, key: str) -> Corpus:
        """Return the corpus of what stands under ``key``."""
        rows = []
        for number, source in enumerate(sources.each()):
            own = f"{key}.sources.{number}" if sources.sources else key
            rows += list(self._rows(source, f"{name}-{number}", key=own))
        return join(rows, [one.weight for one in sources.sources])

    def _rows(self, source: SourceSpec, name: str, *, key: str) -> Iterator[TokenRow]:
        length, first = self._spec.data.seq_len, self._world.rank == 0
        kind = f"{key}.{source.kind}"
        if source.kind == "shards":
            for folder in find_folders(source.paths, key=kind):
                with under(kind):
                    yield open_shards(folder, seq_len=length, check=first)
        elif source.kind == "text_files" and self._spec.tokenizer == BYTES:
            yield open_corpus(source.paths, seq_len=length, key=kind)
        else:
            folder = self._run.env.run.data / name
            self._make(source, folder, key=kind)
            with under(kind):
                yield open_shards(folder, seq_len=length, check=first)

    def _make(self, source: SourceSpec, folder: Path, *, key: str) -> None:
        request = Request(
            kind=cast(Kind, source.kind),
            paths=source.paths,
            field=source.field,
            tokenizer=self._spec.tokenizer,
        )
        work = _Work(request, folder, key) if self._world.rank == 0 else None
        with self._run.busy("preparing data", limit_s=_LIMIT_S):
            self._wait(work)

    def _wait(self, work: "_Work | None") -> None:
        """Return once the shards are there. Collective."""
        tell_at = time.monotonic() + _TELL_S
        wait = self._spec.timeouts_s
        while True:
            said: list[Any] = [work.said() if work else None]
            dist.broadcast_object_list(said, src=0, group=self._world.checkpoint_group)
            over, problem = said[0]
            if problem:
                raise SpecError(problem)
            if over:
                return
            notice = self._run.should_stop(timeout_s=wait.vote, term_timeout_s=wait.term_vote)
            if notice:
                if work:
                    work.stop()
                raise NoticeError(notice)
            if work and time.monotonic() > tell_at:
                tell_at = time.monotonic() + _TELL_S
                self._console.say(work.describe())
            time.sleep(_LOOK_S)


class _Work:
    """Makes shards in a thread of rank 0, by way of worker processes."""

    def __init__(self, request: Request, folder: Path, key: str) -> None:
        self._request, self._folder, self._key = request, folder, key
        self._stop = threading.Event()
        self._problem = ""
        self._progress: Progress | None = None
        self._thread = threading.Thread(target=self._run, name="fsdpq-prepare", daemon=True)
        self._thread.start()
        self._thread.join(0.2)  # mostly it has been done long ago

    def _run(self) -> None:
        try:
            with under(self._key):
                self._make()
        except FsdpqError as problem:
            text = str(problem)  # the workers know of a tokenizer, and not where it is named
            self._problem = text.replace(f"{self._key}: tokenizer:", "data.tokenizer:", 1)
        except Exception as problem:
            # Whatever it is, the other ranks must hear of it.
            self._problem = f"{self._key}: cannot be made ready: {problem!r}"

    def _make(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        if self._folder.exists():
            _check_unchanged(read_index(self._folder), self._request, key=self._key)
            return
        prepare(
            self._request,
            self._folder,
            workers=len(os.sched_getaffinity(0)),
            python=sys.executable,
            tell=self._note,
            stop=self._stop.is_set,
            key=self._key,
            patience_s=_PATIENCE_S,
            own=True,
        )

    def _note(self, progress: Progress) -> None:
        self._progress = progress

    def said(self) -> tuple[bool, str]:
        """Return whether it is over, and what went wrong."""
        return not self._thread.is_alive(), self._problem

    def stop(self) -> None:
        """End the worker processes; what is finished stays."""
        self._stop.set()
        self._thread.join()

    def describe(self) -> str:
        """Return a line for people."""
        seen = self._progress
        share = 0.0 if seen is None else seen.done / max(seen.size, 1)
        return f"making token shards in {self._folder}: {share:.0%}"


def _check_unchanged(index: Index, request: Request, *, key: str) -> None:
    if problem := changed(index.inputs, inputs_of(request, key=key)):
        raise SpecError(
            f"{problem} since the run began; samples would be repeated or left out. Bring the old"
            " one back, or start a new run"
        )


def notes(spec: TrainSpec, corpus: Corpus) -> Iterator[str]:
    """Yield what is most likely not meant."""
    if spec.model.path is None:
        return
    try:
        wanted = tokenizer_digest(Path(spec.model.path))
    except (SpecError, OSError):
        return
    for name in corpus.tokenizers - {wanted}:
        made = "are bytes" if name == BYTES else "were made by another tokenizer"
        yield (
            f"tokens {made}, and {spec.model.path} has a tokenizer of its own; a pretrained model"
            " understands no other (data.tokenizer: model, or fsdpq prepare --tokenizer)"
        )


def remember(run: Run, corpus: Corpus) -> None:
    """Write down what the files are like, so that a changed one can be named. Rank 0 alone."""
    with contextlib.suppress(OSError):
        run.env.run.data.mkdir(mode=0o700, exist_ok=True)
        found = [asdict(one) for one in _signatures(corpus)]
        record = {"inputs": found, "written": _written(corpus)}
        write_json(run.env.run.data / _RECORD, record, durable=False)


def what_changed(run: Run, corpus: Corpus) -> str:
    """Return which file differs from what `remember` saw; "" if nobody knows."""
    try:
        record = loads((run.env.run.data / _RECORD).read_text(encoding="utf-8"))
        found = changed([Input(**one) for one in record["inputs"]], _signatures(corpus))
        return found or _rewritten(record.get("written", {}), _written(corpus))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""


def _written(corpus: Corpus) -> dict[str, int]:
    """Return when each file was last written to, in nanoseconds."""
    return {str(path): path.stat().st_mtime_ns for path in corpus.sources}


def _rewritten(before: dict[str, int], now: dict[str, int]) -> str:
    """Return which files were written to: one of them has what no sample of it has shown."""
    found = [path for path, at in sorted(now.items()) if before.get(path, at) != at]
    others = f" (or one of {len(found) - 1} others)" if len(found) > 1 else ""
    return f"{found[0]}{others} was written to" if found else ""


def _signatures(corpus: Corpus) -> list[Input]:
    blocks = 8 if len(corpus.sources) <= 1000 else 1
    return [signature(path, blocks=blocks) for path in corpus.sources]
