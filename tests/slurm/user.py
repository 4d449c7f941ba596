"""An ordinary user on the login node who types `fsdpq ...`."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster

HERE = Path(__file__).parent
SITE = HERE / "site.yaml"
COUNTER = HERE / "programs" / "counter.py"


class FsdpqUser:
    """Runs `fsdpq` as alice, from a folder of this test on the shared file system.

    Args:
        cluster: Where.
        env: More of her environment, for her jobs too.
    """

    def __init__(self, cluster: Cluster, env: Mapping[str, str] | None = None) -> None:
        self.cluster = cluster
        self.home = cluster.home() / f"test-{uuid.uuid4().hex[:8]}"
        cluster.run(["mkdir", "-p", str(self.home)])
        self.runs = self.home / "runs"
        self._started: list[subprocess.Popen[str]] = []
        self.sites = self.home / ".config" / "fsdpq" / "sites"
        config = str(self.home / ".config")
        own = {"PYTHONPATH": str(cluster.repository), "XDG_CONFIG_HOME": config}
        self._env = own | dict(env or {})

    def add_to_path(self, folder: Path) -> None:
        """Put a folder before the others that commands are looked for in, also by jobs."""
        self._env["PATH"] = f"{folder}:{self.cluster.environment('alice')['PATH']}"

    def argv(self, *args: str) -> list[str]:
        return [self.cluster.python, "-m", "orchestrator", *args]

    def fsdpq(
        self, *args: str, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run `fsdpq ARGS`; a failure shows what it printed."""
        done = self.cluster.run(
            self.argv(*args), cwd=self.home, env=self._env, timeout=timeout, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"fsdpq {args} exited {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start `fsdpq ARGS` in the background; kill() ends it like kill -9."""
        process = self.cluster.popen(self.argv(*args), cwd=self.home, env=self._env)
        self._started.append(process)
        return process

    def send(self, process: subprocess.Popen[str], number: int) -> None:
        """Send a signal to an `fsdpq` that `start` began, and to nothing around it."""
        words = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in words:  # of the program that leads into the cluster's namespaces
            os.kill(int(pid), number)

    def close(self) -> None:
        """End what `start` left running."""
        for process in self._started:
            process.kill()
            process.communicate()

    def write(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Write a file that alice owns."""
        argv = ["sh", "-c", 'cat > "$0" && chmod "$1" "$0"', str(path), f"{mode:o}"]
        self.cluster.run(argv, input=text)

    def job_file(self, job: str, /, **keys: Any) -> Path:
        """Write a job file of two hosts with two workers each."""
        common = {"name": job, "site": str(SITE), "nodes": 2, "gpus_per_node": 2}
        notice = {"lead_s": 5}
        path = self.home / f"{job}.yaml"
        self.write(path, yaml.safe_dump({**common, "notice": notice, **keys}))
        return path

    def submit(self, name: str, **keys: Any) -> RunLayout:
        """Submit a job file with these keys and return the run directory."""
        self.fsdpq("submit", str(self.job_file(name, **keys)))
        return RunLayout(self.runs / name)

    def count(self, name: str, program: Sequence[object], **keys: Any) -> RunLayout:
        """Submit the torch-free counter with these arguments."""
        args = [str(word) for word in program]
        return self.submit(name, script=str(COUNTER), args=args, **keys)

    def status(self, run: str) -> dict[str, Any]:
        """Return `fsdpq status RUN --json`."""
        found: dict[str, Any] = json.loads(self.fsdpq("status", run, "--json").stdout)
        return found

    def watch_once(self, run: str) -> None:
        self.fsdpq("watch", run, "--once")

    def sbatch(self, run: RunLayout, *options: str) -> None:
        """Submit a run's script by hand."""
        argv = ["sbatch", *options, str(run.script)]
        self.cluster.run(argv, cwd=self.home, env=self._env)

    def live_jobs(self) -> list[str]:
        """Return the ids of alice's jobs that wait or run."""
        queue = ["squeue", "--noheader", "--user=alice", "--format=%A"]
        return self.cluster.run(queue).stdout.split()

    def all_jobs(self) -> set[str]:
        """Return the ids of all jobs alice has ever submitted from this folder, by accounting."""
        since, fields = "--starttime=now-1hours", "--format=JobIDRaw,WorkDir"
        done = self.cluster.run(["sacct", "-nXP", "--user=alice", since, fields])
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return {job_id for job_id, folder in rows if folder == str(self.home)}

    def ended_at(self, job_id: int) -> float:
        """Return when a job ended, in seconds since 1970."""
        return datetime.fromisoformat(self.cluster.job(job_id)["EndTime"]).timestamp()


def steps(run: RunLayout) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics."""
    try:
        text = run.metrics.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(run: RunLayout) -> int:
    """Return the newest step in a run's metrics, or 0."""
    lines = steps(run)
    return int(lines[-1]["step"]) if lines else 0


def attempts(run: RunLayout) -> int:
    """Return how many attempts a run has had."""
    return len(list(run.attempts.iterdir()))
