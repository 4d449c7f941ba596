"""Start a run's script through submitit's LocalExecutor: `python -m orchestrator.local.start RUN`.

Runs as a process of its own that leads a session, so that the controller it starts survives the
terminal and Ctrl-C.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from submitit.core.core import Job
from submitit.local.local import LocalExecutor

from orchestrator.rundir.layout import RunLayout

# submitit ends a local job after two minutes unless it is told otherwise.
_TEN_YEARS_MIN = 60 * 24 * 3650


def main() -> None:
    """Start the script and leave the controller's process id in submitit's folder."""
    layout = RunLayout(Path(sys.argv[1]))
    executor = LocalExecutor(layout.submitit)
    executor.update_parameters(timeout_min=_TEN_YEARS_MIN, stderr_to_stdout=True)
    job: Job[Any] = executor._submit_command(shlex.join([*_own_gpus(), "bash", str(layout.script)]))
    (layout.submitit / "job-id").write_text(f"{job.job_id}\n", encoding="utf-8")
    # submitit's job object ends the controller when it is collected, and it must live on.
    sys.stdout.flush()
    os._exit(0)


def _own_gpus() -> list[str]:
    """Return the command that gives the script the caller's GPUs; submitit would hide them all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ["env", "--unset=CUDA_VISIBLE_DEVICES"]
    return ["env", f"CUDA_VISIBLE_DEVICES={visible}"]


if __name__ == "__main__":
    main()
