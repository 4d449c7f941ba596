"""The trainer's side of the copies: a process is started, and told when it is over."""

import json
import subprocess
import sys
from contextlib import suppress

from orchestrator.runtime import Run
from orchestrator.spec.train import TrainSpec

# After a notice little time is left; what is not told then, the next attempt tells.
_STOP_S = 3.0
_FINISH_S = 60.0


class Mirror:
    """The process that copies the metrics; nothing where none is wanted. On rank 0 alone."""

    def __init__(self, run: Run, spec: TrainSpec) -> None:
        self._process: subprocess.Popen[str] | None = None
        if run.env.rank == 0 and spec.metrics.wanted:
            self._start(run, spec)

    def _start(self, run: Run, spec: TrainSpec) -> None:
        orders = {
            "run": str(run.env.run.root.absolute()),
            "attempt": run.env.attempt,
            "resumed": run.step,
            "metrics": spec.metrics.model_dump(),
            "config": spec.model_dump(mode="json", exclude={"metrics"}),
        }
        # It inherits the blocked signals: a notice reaches each process of the step.
        argv = [sys.executable, "-m", "orchestrator.trainer.mirror"]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
            )
            self._say(json.dumps(orders))
        except OSError as problem:
            print(f"fsdpq: the metrics are not copied: {problem}", file=sys.stderr, flush=True)

    def close(self, *, stopped: bool) -> None:
        """Let it tell the rest, for a minute at most, or for seconds where a notice came."""
        process = self._process
        if process is None:
            return
        with suppress(OSError, ValueError):
            self._say("end")
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(_STOP_S if stopped else _FINISH_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _say(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
