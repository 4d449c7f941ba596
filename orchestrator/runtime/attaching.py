"""How a process becomes a worker of its run: once, and first thing."""

import os
from pathlib import Path

from orchestrator.rundir.limits import Limits
from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.environment import read_environment
from orchestrator.runtime.notices import NoticeBoard, end_with_parent
from orchestrator.runtime.pulse import Pulse
from orchestrator.runtime.run import Run

_attached: Run | None = None


def attach(*, ranks: Agreement | None = None) -> Run:
    """Return the run that this process is a worker of.

    Call it first thing, before torch is imported and before threads are started: it blocks the
    notice signals, and only what starts later inherits that. Children inherit it too, SIGTERM
    included, so end one of your own with kill() rather than terminate(). Under torchrun the worker
    also ends with its torchrun. A second call returns the same run.

    Args:
        ranks: How several ranks agree in a script without torch.distributed.

    Raises:
        RunError: The environment makes no sense, or this is not the main thread.
    """
    global _attached
    if _attached is None:
        _attached = _attach(ranks)
    return _attached


def _attach(ranks: Agreement | None) -> Run:
    env = read_environment(os.environ)
    board = NoticeBoard(
        signals=env.notice_signals, file=env.notice_file, under_torchrun=env.under_torchrun
    )
    board.watch()
    if env.under_torchrun:
        end_with_parent()
    local_dir = os.environ.get("FSDPQ_LOCAL_DIR")
    pulse = Pulse(
        env,
        limits=Limits.from_text(os.environ.get("FSDPQ_HANG", "")),
        local_dir=Path(local_dir) if local_dir else None,
    )
    pulse.start()
    return Run(env, board, ranks=ranks, pulse=pulse)
