"""What a start consists of: seconds from the start of the process to the end of the first step.

Rank 0 writes them to `startup.json` in its attempt's folder:

    {"started_at": 1732900000.0, "import_s": 7.2, "connect_s": 1.1, "data_s": 0.1, "resume_s": 2.0,
     "build_s": 1.5, "load_s": 4.0, "first_step_s": 1.5, "total_s": 17.4}

`import_s` counts from the start of the process, all else from the part before it; `resume_s` is the
choice and the check of a checkpoint, `evaluation_s` a validation that the attempt before owed,
`first_step_s` has compilation in it.
"""

import contextlib
import os
import time
from pathlib import Path

from orchestrator.checkpoint.durable import write_json
from orchestrator.runtime import Run
from orchestrator.trainer.metrics import Console


class Startup:
    """The parts of a start, as they end."""

    def __init__(self, started_at: float) -> None:
        self.started_at = self._last = started_at
        self.parts: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """Say that ``part`` is over."""
        now = time.time()
        self.parts[f"{part}_s"] = round(max(0.0, now - self._last), 3)
        self._last = now

    def tell(self, run: Run, console: Console) -> None:
        """Write down all parts. On rank 0; nothing if that cannot be written."""
        if run.env.rank != 0:
            return
        total_s = round(self._last - self.started_at, 3)
        content = {"started_at": self.started_at, **self.parts, "total_s": total_s}
        with contextlib.suppress(OSError):
            write_json(run.env.files.startup, content, durable=False)
        told = ", ".join(
            f"{name.removesuffix('_s')} {took:.1f}" for name, took in self.parts.items()
        )
        console.say(f"{total_s:.1f} s from the start of the process to the first step: {told}")


def process_started_at() -> float:
    """Return when this process was started, in seconds since 1970; now, if that is not known.

    Source: proc_pid_stat(5), field 22, in clock ticks since boot; proc_uptime(5).
    """
    now = time.time()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return now
    return now - max(0.0, uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
