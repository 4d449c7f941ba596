"""The cluster, the runs on it and the watchers, as faults and the runner handle them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.runstore.history import history
from tests.slurm.cluster import Cluster, ClusterConfig, ComputeHost, SlurmVersion
from tests.slurm.cluster.config import small_disk
from tests.slurm.user import FsdpqUser

from .ledger import Tail, rank_file

PROGRAM = Path(__file__).with_name("program.py")
NODES, GPUS = 2, 2
WORLD_SIZE = NODES * GPUS
STEP_S, EVERY = 0.15, 10
PARTITIONS = ("spot", "spotcancel", "nograce")
WATCHERS = 2
POLL_S = 0.05
HOSTS_S = 20.0


def config(version: SlurmVersion, runs: int) -> ClusterConfig:
    """A cluster with room for all runs and one host to spare."""
    hosts = tuple(ComputeHost(name=f"n{i}") for i in range(1, NODES * runs + 2))
    return ClusterConfig(version=version, hosts=hosts, small_disks=runs)


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        path: Its directory, as the cluster's users name it; on a small disk of its own.
        layout: The same, as this process sees it.
    """

    number: int
    name: str
    partition: str
    path: Path
    layout: RunLayout
    ledger: Path
    tails: tuple[Tail, ...]

    @property
    def attempt(self) -> int:
        """The number of its newest attempt, or 0."""
        return max(store.attempt_numbers(self.layout), default=0)

    @property
    def job_id(self) -> str:
        """The id of the newest job that is known to fsdpq."""
        return history(store.events(self.layout)).submitted[-1]

    @property
    def step(self) -> int:
        newest = self.tails[0].newest("step")
        return int(newest["step"]) if newest else 0

    def left(self, attempt: int) -> bool:
        """Whether an attempt is over as far as its batch shell or its successor tells."""
        return self.layout.attempt(attempt).exit.exists() or self.attempt > attempt

    def workers(self) -> list[dict[str, Any]]:
        """Host, pid and parent of each rank of the newest attempt that has written it down."""
        starts = [start for tail in self.tails if (start := tail.newest("start"))]
        newest = max((start["attempt"] for start in starts), default=0)
        return [start for start in starts if start["attempt"] == newest]


class StoppedError(Exception):
    """Another part of the storm has failed, so this one ends."""


class MissedError(Exception):
    """A fault has nothing to strike any more; something else was faster."""


# Longer than Slurm takes to notice a host that is gone, so that the hang detector is not faster.
HANG = {"min_s": 45, "start_s": 150, "save_s": 90}
# What Slurm says of a job that has gone on meanwhile.
GONE = ("Invalid job id", "already completing", "Job/step already", "ob is pending")


class World:
    """Everything there is."""

    def __init__(self, cluster: Cluster, runs: int) -> None:
        self.cluster = cluster
        self.user = FsdpqUser(cluster)
        # Held by whatever changes the controller, or counts on its settings for a while.
        self.settings = threading.Lock()
        self.stopped = threading.Event()
        self._hosts = threading.Lock()
        self._broken: set[str] = set()
        self.runs = [self._new(number) for number in range(runs)]
        self.watchers: dict[int, subprocess.Popen[str]] = {}

    def _new(self, number: int) -> Run:
        name = f"storm-{number + 1}"
        path = small_disk(self.cluster.work, number) / name
        ledger = self.user.home / f"ledger-{number + 1}"
        return Run(
            number=number,
            name=name,
            partition=PARTITIONS[number % len(PARTITIONS)],
            path=path,
            layout=RunLayout(self.cluster.from_outside(path)),
            ledger=ledger,
            tails=tuple(Tail(rank_file(ledger, rank)) for rank in range(WORLD_SIZE)),
        )

    def submit(self, run: Run) -> None:
        """Start a run as its user would."""
        self.cluster.run(["mkdir", str(run.ledger)])
        args = [str(run.ledger), str(STEP_S), str(EVERY)]
        job = self.user.job_file(
            run.name,
            script=str(PROGRAM),
            args=args,
            partition=run.partition,
            restart={"max_no_progress": 10, "delay_s": 1, "bad_nodes": {"patience_s": 60}},
            hang=HANG,
        )
        self.user.fsdpq("submit", "--runs", str(run.path.parent), str(job))

    def start_watcher(self, number: int) -> None:
        """Start a watcher over all runs; what it prints goes to a file."""
        argv = self.user.argv("watch", *(str(run.path) for run in self.runs), "--every", "2")
        log = self.user.home / f"watcher-{number}.log"
        script = 'log=$0; exec "$@" >>"$log" 2>&1'
        env = {"PYTHONPATH": str(self.cluster.repository)}
        self.watchers[number] = self.cluster.popen(
            ["sh", "-c", script, str(log), *argv], cwd=self.user.home, env=env
        )

    def kill_watcher(self, number: int) -> None:
        """End a watcher as kill -9 does."""
        self.watchers[number].kill()
        self.watchers[number].communicate()

    def close(self) -> None:
        """End the watchers that are left."""
        for number in self.watchers:
            self.kill_watcher(number)

    def status(self, run: Run) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.user.fsdpq("status", str(run.path), "--json").stdout
        )
        return found

    # Hosts

    def hosts(self, run: Run) -> list[str]:
        """The hosts of a run's newest attempt, which may just be writing them down."""
        self.waited(lambda: self._hosts_of(run), HOSTS_S)
        return self._hosts_of(run)

    def _hosts_of(self, run: Run) -> list[str]:
        start = store.read_json(run.layout.attempt(run.attempt).start) or {}
        if nodes := start.get("nodes"):
            return self.cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split()
        return sorted({worker["host"] for worker in run.workers()})

    @contextlib.contextmanager
    def breaking(self, run: Run, pick: int) -> Iterator[str]:
        """One of a run's hosts that no other fault has; it comes back afterwards.

        Raises:
            MissedError: There is none.
        """
        with self._hosts:
            there = [host for host in self.hosts(run) if self.cluster.has_power(host)]
            free = [host for host in there if host not in self._broken]
            if not free:
                raise MissedError("none of its hosts is up")
            host = free[pick % len(free)]
            self._broken.add(host)
        try:
            yield host
        finally:
            self.cluster.revive(host)
            self._broken.discard(host)

    def on(self, host: str, argv: Sequence[str]) -> bool:
        """Run a command on a host as root, if the host is there; whether it succeeded."""
        try:
            done = self.cluster.run(argv, user="root", host=host, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    # Waiting

    def wait(self, predicate: Callable[[], object], timeout: float, what: str) -> None:
        """Return once the predicate holds.

        Raises:
            TimeoutError: With what a person would look at first.
        """
        if not self.waited(predicate, timeout):
            raise TimeoutError(f"not within {timeout:g} s: {what}\n{self.cluster.situation()}")

    def waited(self, predicate: Callable[[], object], timeout: float) -> bool:
        """Whether the predicate came true in time."""
        deadline = time.monotonic() + timeout
        while not predicate():
            if self.stopped.is_set():
                raise StoppedError
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def last(self, seconds: float) -> None:
        """Let a fault last."""
        self.waited(lambda: False, seconds)

    def answered(self, argv: Sequence[str], *, user: str = "alice", timeout: float = 120) -> str:
        """What a command of Slurm prints; asked again while the controller is away.

        Raises:
            MissedError: The job that it is about has ended.
            TimeoutError: Nobody answers.
        """
        deadline = time.monotonic() + timeout
        while True:
            done = self.cluster.run(argv, user=user, cwd=self.user.home, check=False)
            if done.returncode == 0:
                return done.stdout
            if any(words in done.stderr for words in GONE):
                raise MissedError(done.stderr.strip())
            if time.monotonic() > deadline:
                raise TimeoutError(f"{argv}: {done.stdout}{done.stderr}")
            self.last(1)

    @contextlib.contextmanager
    def told_by(self, user_signal: bool) -> Iterator[None]:
        """Let the cluster announce preemptions by the user's signal, or by SIGTERM alone."""
        with self.settings:
            self.cluster.reconfigure(user_signal=user_signal)
            yield

    # Urgent jobs of somebody else

    def urgent(self, hosts: Sequence[str], seconds: float) -> int:
        """Submit a job that takes these hosts, and so preempts what runs on them."""
        where = [f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}", "--exclusive"]
        options = ["--partition=prod", *where, "--job-name=urgent", "--output=/dev/null"]
        return self.cluster.sbatch(options, f"sleep {seconds}", user="bob")

    def waits(self, job: int) -> bool:
        """Whether a job has still to begin or to end; so it is taken for while nobody answers."""
        argv = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
        done = self.cluster.run(argv, user="bob", check=False)
        return "Invalid job id" not in done.stderr and bool(done.returncode or done.stdout.strip())

    def end_urgent(self, job: int) -> None:
        """End such a job, if it has not ended: a host that it waits for may be off."""
        with contextlib.suppress(MissedError):
            self.answered(["scancel", str(job)], user="root")
