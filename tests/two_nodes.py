"""Two node.sh on one machine, as srun would start them, with the counter as the job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.script import render
from orchestrator.profile import SiteProfile
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import store
from orchestrator.spec.job import JobSpec

ROOT = Path(__file__).parents[1]
COUNTER = ROOT / "tests/slurm/programs/counter.py"
# In torchrun's place: one worker a node, without torch.
LAUNCHER = f"""#!/bin/bash
[ "$2" != orchestrator.monitor ] || exec {sys.executable} "$@"
shift 2
while [[ $1 == -* ]]; do shift; done
export RANK=$FSDPQ_NODE WORLD_SIZE=2 LOCAL_RANK=0
exec {sys.executable} "$@"
"""
SITE: dict[str, Any] = {
    "name": "cloud",
    "description": "two machines of a cloud",
    "source": ["nowhere"],
    "checked": "2026-11-29",
    "confidence": "own",
    "fabric": {"kind": "ethernet"},
}


class TwoNodes:
    """A run on two nodes, whose first attempt is under way."""

    def __init__(self, folder: Path, *, cloud: str, python: str, counter: list[str]) -> None:
        self.folder = folder
        self.run = RunLayout(folder / "runs" / "llama")
        job = JobSpec.model_validate(
            {"name": "llama", "site": "cloud", "nodes": 2, "script": str(COUNTER)}
            | {"args": counter, "python": python, "gpus_per_node": 1}
        )
        site = SiteProfile.model_validate({**SITE, "cloud": cloud})
        plan = planning.plan(job, site, layout=self.run, cwd=folder, python="")
        store.create(self.run, render(plan))
        self.attempt: AttemptLayout = self.run.attempt(1)
        for part in (self.attempt.errors, self.attempt.logs, self.attempt.root / "nccl"):
            part.mkdir(parents=True)
        self.port = free_port()

    @contextmanager
    def start(self, *metadata: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Start both nodes, each with a metadata service of its own."""
        nodes = [self._node(number, url) for number, url in enumerate(metadata)]
        try:
            yield nodes
        finally:
            for node in nodes:
                node.kill()
                node.communicate()

    def stepped(self) -> bool:
        """Return whether a step is done; before it, progress tells only of what goes before."""
        return "step" in (store.read_json(self.attempt.progress) or {})

    def _node(self, number: int, url: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", self.run.node_script],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self.folder),
                "SLURM_NODEID": str(number),
                "SLURM_JOB_NUM_NODES": "2",
                "FSDPQ_RUN_DIR": str(self.run.root),
                "FSDPQ_CHECKPOINT_DIR": str(self.run.checkpoints),
                "FSDPQ_ATTEMPT": "1",
                "FSDPQ_ATTEMPT_DIR": str(self.attempt.root),
                "FSDPQ_NOTICE_SIGNALS": "USR2,TERM",
                "FSDPQ_PORT": str(self.port),
                "FSDPQ_HEAD": "127.0.0.1",
                "FSDPQ_METADATA_URL": url,
                "GLOO_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def free_port() -> int:
    """Return a port whose neighbour is free too; the counter takes that one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
        return port
