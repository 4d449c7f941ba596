"""What a script logs: a line of metrics.jsonl, from which `fsdpq status` and others read.

{"attempt": 2, "step": 41, "loss": 3.25, "step_s": 0.21, "world_size": 8, "at": 1732900000.0}
"""

import json
import math
import sys
import time
from collections.abc import Mapping

from orchestrator.json_lines import append_line
from orchestrator.runtime.environment import Environment


class Logbook:
    """Appends to metrics.jsonl. A disk that does not take it is told once, and ends nothing."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._silent = False

    def write(self, *, step: int, step_s: float | None, values: Mapping[str, object]) -> None:
        """Append the line of ``step``.

        Raises:
            TypeError: A value is nothing that JSON knows.
        """
        told = {} if step_s is None else {"step_s": step_s}
        line = {
            "attempt": self._env.attempt,
            "step": step,
            **told,
            **{name: _finite(value) for name, value in values.items()},
            "world_size": self._env.world_size,
            "at": time.time(),
        }
        text = json.dumps(line) + "\n"
        try:
            append_line(self._env.run.metrics, text.encode())
        except OSError as problem:
            if not self._silent:
                print(f"fsdpq: the metrics are not written: {problem}", file=sys.stderr, flush=True)
            self._silent = True


def _finite(value: object) -> object:
    """Return ``value`` as JSON can say it; a tensor or NumPy number of one element is its value."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
