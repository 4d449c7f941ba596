"""Find and read the logs of a run."""

import codecs
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

_EVERY_S = 0.5


def files(
    layout: RunLayout, *, attempt: int | None, rank: int | None, nproc_per_node: int
) -> list[Path]:
    """Return the log files asked for: of the whole job, of an attempt, or of one rank of it.

    Raises:
        RunError: There is no such attempt or rank.
    """
    if attempt is None and rank is None:
        return [layout.output]
    number = attempt or _newest(layout)
    folder = layout.attempt(number).logs
    if not folder.is_dir():
        raise RunError(f"{layout.name}: there is no attempt {number}")
    node, local = ("*", "*") if rank is None else divmod(rank, nproc_per_node)
    # torchrun puts a folder of a random name between its log folder and the local ranks.
    found = sorted(folder.glob(f"node-{node}/*/attempt_0/{local}/std*.log"))
    if not found:
        what = "a log" if rank is None else f"a log of rank {rank}"
        raise RunError(f"{layout.name}: attempt {number} has not left {what}; see {layout.output}")
    return found


def _newest(layout: RunLayout) -> int:
    numbers = store.attempt_numbers(layout)
    if not numbers:
        raise RunError(f"{layout.name}: no attempt has started yet; see `fsdpq status`")
    return numbers[-1]


def read(paths: Sequence[Path], *, following: bool, over: Callable[[], bool]) -> Iterator[str]:
    """Yield the text of ``paths``; with ``following`` go on as they grow, until ``over``."""
    places = dict.fromkeys(paths, 0)
    # A letter of several bytes may be written in two goes.
    decoders = {path: codecs.getincrementaldecoder("utf-8")("replace") for path in paths}
    while True:
        last = not following or over()
        for path in paths:
            with path.open("rb") if path.exists() else open("/dev/null", "rb") as file:  # noqa: PTH123
                file.seek(places[path])
                data = file.read()
            places[path] += len(data)
            yield decoders[path].decode(data, final=last)
        if last:
            return
        time.sleep(_EVERY_S)
