"""A run whose scripts run whole; srun, scontrol, squeue and Python are a few lines of bash each."""

from __future__ import annotations

import dataclasses
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.script import render
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

from .builders import site, spec
from .polling import until

FAKES = {
    "srun": 'while [ "$1" != bash ]; do shift; done\nexec "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo n1; exit; fi\n'
    'echo "scontrol $*" >>"$WORLD/calls"\nexit "$(cat "$WORLD/$1.rc" 2>/dev/null || echo 0)"',
    "squeue": 'echo "squeue $*" >>"$WORLD/calls"\ncat "$WORLD/state"',
    "python": '[ "$2" != orchestrator.monitor ] || exit 0\n'
    'if [ "$2" = orchestrator.preflight ]; then\n'
    '[ ! -e "$WORLD/preflight.sh" ] || source "$WORLD/preflight.sh"\nexit\nfi\n'
    'source "$WORLD/python.sh"',
}
STOPPED = '{"outcome": "stopped", "first_step": 30, "step": 42, "saved_step": 42}'
NEWER = 'sleep 0.02; mkdir -p "$FSDPQ_CHECKPOINT_DIR"; touch "$FSDPQ_CHECKPOINT_DIR/LATEST"'


@dataclass
class World:
    """A run directory with scripts, the fakes, and what they are told to do."""

    path: Path
    run: RunLayout

    def python(self, *lines: str) -> None:
        """Let the worker do this."""
        (self.path / "python.sh").write_text("\n".join(lines) + "\n")

    def says(self, state: str) -> None:
        """Let squeue say this of the job."""
        (self.path / "state").write_text(f"{state}\n")

    def refuses(self, command: str) -> None:
        """Let this subcommand of scontrol fail."""
        (self.path / f"{command}.rc").write_text("1\n")

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "WORLD": str(self.path),
            "TMPDIR": str(self.path),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_JOB_NUM_NODES": "1",
            **more,
        }

    def start(self, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", self.run.script],
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go(self, **more: str) -> int:
        """Run the script to its end and return its exit code."""
        process = self.start(**more)
        process.communicate(timeout=30)
        return process.returncode

    def wait_for(self, name: str) -> None:
        """Wait until a script has made this file."""
        until((self.path / name).exists, f"{name} does not appear", within_s=60)

    @property
    def calls(self) -> list[str]:
        path = self.path / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def end(self, attempt: int = 1) -> dict[str, Any]:
        return store.read_json(self.run.attempt(attempt).exit) or {}


def make(
    tmp_path: Path,
    scheduler: str,
    *,
    at: dict[str, Any] | None = None,
    python_path: tuple[str, ...] = (),
    **job: Any,
) -> World:
    """Make a world: a run of a small job on a site with this scheduler."""
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    run = RunLayout(tmp_path / "runs" / "llama")
    plan = planning.plan(
        spec(python=str(tmp_path / "python"), **job),
        site(scheduler=scheduler, **(at or {})),
        layout=run,
        cwd=tmp_path,
        python="",
    )
    store.create(run, render(dataclasses.replace(plan, python_path=python_path)))
    world = World(tmp_path, run)
    world.says("RUNNING")
    return world


def stops(*more: str) -> list[str]:
    """Lines of a worker that hears a notice, saves a checkpoint and stops."""
    return [
        'touch "$FSDPQ_ATTEMPT_DIR/notice.0"',
        f"echo '{STOPPED}' >\"$FSDPQ_ATTEMPT_DIR/status.json\"",
        *more,
    ]
