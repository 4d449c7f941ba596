"""A scheduler whose jobs a test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.errors import (
    ActionError,
    ActionUnknownError,
    QueryError,
    SubmitError,
    SubmitUnknownError,
)
from orchestrator.rundir.layout import RunLayout
from orchestrator.scheduler import Answer, Ids, JobRecord, JobState, no_ids

from .builders import NOW

S = JobState


class Cluster:
    """A scheduler whose jobs a test sets, and that keeps what it was told to do."""

    def __init__(self) -> None:
        self.found: list[JobRecord] = []
        self.done: list[tuple[str, ...]] = []
        self.refuses: set[str] = set()
        self.silent = False
        self.next_id = 8
        self.nodes: int | None = None
        self.before_answer: Callable[[], None] = lambda: None

    def put(self, job_id: str = "7", state: JobState = S.RUNNING, **changes: Any) -> None:
        """Let there be one job."""
        ended = {"end": NOW - 60, "exit_code": 1} if state.ended else {}
        fields = {"job_id": job_id, "name": "llama-1", "state": state, "restart": 0, **ended}
        self.found = [JobRecord(**{**fields, **changes})]

    def _do(self, *what: str) -> None:
        self.done.append(what)
        if what[0] in self.refuses:
            raise ActionError(what, returncode=1, stderr="refused")

    def jobs(self, names: Sequence[str], *, ids: Ids = no_ids) -> Answer:
        self.before_answer()
        if self.silent:
            raise QueryError(["squeue"], returncode=1, stderr="down")
        return Answer(tuple(self.found))

    def requeue(self, job_id: str) -> None:
        if "requeue answer" in self.refuses:
            self.done.append(("requeue", job_id))
            said = "Socket timed out on send/recv operation"
            raise ActionUnknownError(["scontrol"], returncode=1, stderr=said)
        self._do("requeue", job_id)
        restart = 1 + sum(job.restart or 0 for job in self.found)
        self.put(job_id, S.PENDING, restart=restart, reason="BeginTime")

    def start_now(self, job_id: str) -> None:
        self._do("start now", job_id)

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        self._do("exclude", job_id, *nodes)

    def node_count(self, partition: str | None) -> int | None:
        return self.nodes

    def cancel(self, job_id: str) -> None:
        self._do("cancel", job_id)
        self.found = []

    def notify(self, job_id: str, *, signal: str) -> None:
        self._do("notify", job_id, signal)

    def submit(self, layout: RunLayout, *, options: Sequence[str] = ()) -> str:
        self.done.append(("submit", *options))
        if "submit" in self.refuses:
            raise SubmitError(["sbatch"], returncode=1, stderr="Invalid account")
        if "answer" in self.refuses:
            raise SubmitUnknownError(["sbatch"], returncode=1, stderr="Socket timed out")
        job_id, self.next_id = str(self.next_id), self.next_id + 1
        self.put(job_id, S.PENDING)
        return job_id
