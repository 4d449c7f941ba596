"""What rank 0 reports: metrics.jsonl, one line a step over all attempts, and a word on stdout.

`step_s` is the time of the step, `blocked_s` the time since the step before it in this attempt: for
saves and votes. `tokens_per_s` counts the tokens of all ranks. `data_wait_s` is how long rank 0
waited for its samples within the step, `skipped` how many steps so far changed nothing since loss
or gradient was not finite; those of such a step are null. `mfu`, `peak_memory_gib` and
`peak_reserved_gib` are rank 0's (see utilization.py), and null without a GPU. The first line
after a save was published has `save`: its step, bytes, seconds, and for how many of them it blocked
the training. A line after whose step the loss was measured on the validation set has `eval`: the
step, loss, perplexity, tokens and seconds. `ranks` says of the step before, if that was in the same
attempt and there are several ranks: which of them was busy with it by itself for longest, for how
long, and what the median is (see pace.py for what that is and is not).

A killed attempt may have logged steps after its last checkpoint; they are trained and logged again,
so the same step can stand here twice, under two attempts. The later attempt is the true one.
Where a notice cut a validation short, the next attempt makes up for it before its first step and
writes the line of that step once more, as it was and with `eval` and `again: true`.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TAIL = 1 << 20


def finite(number: float) -> float | None:
    """Return ``number``, or None where it is none: JSON has no word for it."""
    return number if math.isfinite(number) else None


class MetricsLog:
    """Appends lines, each in one write, so that no reader sees a line that another one broke."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        if not _ends_with_newline(self._file):  # a killed attempt left half a line
            os.write(self._file, b"\n")

    def write(self, **values: Any) -> None:
        """Append one line. Floats read back bit for bit."""
        os.write(self._file, (json.dumps(values) + "\n").encode())

    def add(self, step: int, **values: Any) -> None:
        """Append the line of ``step`` once more, with ``values``; nothing if it is far back.

        It keeps its attempt, for none has done the step again, and took no time.
        """
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, _TAIL, max(0, size - _TAIL)).splitlines()
        for line in map(_parsed, reversed(tail)):
            if line.get("step") == step:
                self.write(**{**line, "step_s": 0.0, "blocked_s": 0.0, **values, "again": True})
                return


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # the first one was cut
        return {}
    return found if isinstance(found, dict) else {}


def _ends_with_newline(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


class Console:
    """Prints lines for people; nothing if ``quiet``."""

    _EVERY_S = 10.0

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._next = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            print(f"fsdpq: {text}", flush=True)

    def step(self, line: Mapping[str, Any]) -> None:
        """Print a line of the metrics, unless one was printed just before."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._EVERY_S
        loss, norm = line["loss"], line["grad_norm"]
        sound = loss is not None and norm is not None
        what = f"loss {loss:.4f}, gradient norm {norm:.3f}" if sound else "not finite, left out"
        self.say(f"step {line['step']}: {what}, {line['tokens_per_s']:,.0f} tokens/s")
