"""The fake Slurm's state: jobs, accounting and what becomes of them as time passes.

Every rule here was measured on Slurm 22.05.8; `tests/slurm/test_fake_slurm.py` compares both.
Only the standard library, and little of it: each of Slurm's commands is a process that loads this.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from tests.rounds import script
from tests.rounds.clock import Clock

Job = dict[str, Any]

# What a job that has ended is called, and its raw wait status (exit code times 256, or signal).
WAIT_STATUS = {
    "COMPLETED": 0,
    "FAILED": 256,
    "PREEMPTED": 15,
    "CANCELLED": 15,
    "TIMEOUT": 15,
    "NODE_FAIL": 15,
}
ENDED = frozenset(WAIT_STATUS)
BEGIN_S = 121.0
# How long a real Slurm took to put back a job whose node was lost.
PUT_BACK_S = 2.0
SAVE_S = 3.0


class Slurm:
    """The state, held under its lock; `with Slurm(folder) as slurm` loads it and stores it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.clock = Clock(f"{folder}/clock")
        self.state: dict[str, Any] = {}
        self._lock = -1
        self._journal: list[dict[str, Any]] = []

    def __enter__(self) -> Slurm:
        self._lock = os.open(f"{self.folder}/lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        with open(f"{self.folder}/state.json") as file:  # noqa: PTH123 (a quick start matters)
            self.state = json.load(file)
        self.pass_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.store()
        os.close(self._lock)

    def store(self) -> None:
        """Write all that happened, in one piece; a crash of the fake itself is no subject here."""
        draft = f"{self.folder}/state.new"
        with open(draft, "w") as file:  # noqa: PTH123
            json.dump(self.state, file)
        os.replace(draft, f"{self.folder}/state.json")  # noqa: PTH105
        lines = "".join(json.dumps(entry) + "\n" for entry in self._journal)
        self._journal.clear()
        with open(f"{self.folder}/journal.jsonl", "a") as file:  # noqa: PTH123
            file.write(lines)

    def note(self, what: str, at: float, **facts: Any) -> None:
        """Add to the journal, from which alone a round is judged."""
        by = os.environ.get("ROUNDS_WHO", "slurm")
        self._journal.append({"what": what, "at": round(at, 3), "by": by, **facts})

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def jobs(self) -> dict[str, Job]:
        found: dict[str, Job] = self.state["jobs"]
        return found

    # What happens by itself

    def pass_time(self) -> None:
        """Let everything happen that is due, in the order of time."""
        while due := self._due():
            _, what, item = min(due, key=lambda entry: entry[0])
            what(*item)

    def _due(self) -> list[tuple[float, Any, tuple[Any, ...]]]:
        now = self.now
        found: list[tuple[float, Any, tuple[Any, ...]]] = [
            (a["at"], self._arrive, (a,)) for a in self.state["arrivals"] if a["at"] <= now
        ]
        for job in self.jobs.values():
            if job["next"] and job["next"][0] <= now:
                found.append((job["next"][0], self._next, (job,)))
            elif job["state"] in ENDED and job["end"] + self.state["min_job_age_s"] < now:
                found.append((job["end"], self._forget, (job,)))
            elif job["state"] == "PENDING" and self._may_start(job, now):
                begin = max(job["begin"], job["submit"])
                found.append((begin, self._start, (job, begin)))
        return found

    def _arrive(self, arrival: dict[str, Any]) -> None:
        self.state["arrivals"].remove(arrival)
        self.submit(arrival["script"], arrival["at"], by=arrival["by"])

    def _forget(self, job: Job) -> None:
        self.note("forgotten", self.now, job_id=job["id"])
        del self.jobs[job["id"]]

    def _may_start(self, job: Job, now: float) -> bool:
        """Whether its time has come, and its turn.

        A job of its name with a higher id does not hold it back, when it is requeued: singleton
        asks for earlier submissions only.
        """
        return job["begin"] <= now and not self.waits_its_turn(job)

    def waits_its_turn(self, job: Job) -> bool:
        """Whether a job of its name that was submitted earlier is still there."""
        return job["singleton"] and any(
            other["name"] == job["name"]
            and other["state"] not in ENDED
            and int(other["id"]) < int(job["id"])
            for other in self.jobs.values()
        )

    def _start(self, job: Job, at: float) -> None:
        job.update(state="RUNNING", start=at, reason="None", nodes="n[1-2]", code=0)
        self._account(job)
        number = script.start(job, at)
        if number is None:  # finished or cancelled: the script leaves at once
            self.end(job, "COMPLETED", at)
            return
        self.note("start", at, job_id=job["id"], restart=job["restart"], attempt=number)
        job["attempt"] = number
        lives = self.state["lives"]
        life = lives.pop(0) if lives else None
        job["next"] = [at + life["after_s"], life["end"]] if life else None

    def _next(self, job: Job) -> None:
        at, what = job["next"]
        job["next"] = None
        if what == "put back":
            self.put_back(job, at, by="slurm")
        elif what == "saved":
            self._saved(job, at)
        elif what == "lost node":
            self.end(job, "NODE_FAIL", at)
            job["next"] = [at + PUT_BACK_S, "put back"]
        else:
            script.end(job, what, at, self.state)
            self.end(job, "FAILED" if what == "no progress" else what, at)

    def _saved(self, job: Job, at: float) -> None:
        """The batch shell after a notice: put the job back, unless its run is cancelled."""
        again = script.stop(job, at, self.state)
        self.end(job, "COMPLETED", at)
        if again:
            self.put_back(job, at, by="script")

    def end(self, job: Job, state: str, at: float) -> None:
        reason = "NonZeroExitCode" if state == "FAILED" else "None"
        job.update(state=state, end=at, next=None, reason=reason, code=WAIT_STATUS.get(state, 0))
        self.note("end", at, job_id=job["id"], restart=job["restart"], state=state)
        self._account(job)

    # What commands do

    def submit(self, path: str, at: float, *, by: str) -> Job:
        """A new job from a script, as sbatch reads it."""
        job_id = str(self.state["next_id"])
        self.state["next_id"] += 1
        job: Job = {
            "id": job_id,
            "state": "PENDING",
            "restart": 0,
            "reason": "None",
            "code": 0,
            "submit": at,
            "begin": at,
            "start": None,
            "end": None,
            "nodes": "",
            "next": None,
            **script.read(path),
        }
        self.jobs[job_id] = job
        self._account(job)
        self.note("submit", at, job_id=job_id, asked_by=by)
        return job

    def put_back(self, job: Job, at: float, *, by: str) -> None:
        """The same id again, with a new submit time, as a requeue does it.

        It waits for two minutes, whether it ran or had ended, and keeps its last exit code. In
        accounting its last start is called REQUEUED from now on.
        """
        if job["state"] not in ENDED:
            self.end(job, "REQUEUED", at)
        self._account({**job, "state": "REQUEUED"})
        job.update(state="PENDING", restart=job["restart"] + 1, submit=at, begin=at + BEGIN_S)
        job.update(start=None, end=None, nodes="", next=None)
        self.note("requeue", at, job_id=job["id"], restart=job["restart"], asked_by=by)
        self._account(job)

    def _account(self, job: Job) -> None:
        """One record for each start, as slurmdbd keeps them."""
        records = self.state["accounting"]
        record = {key: job[key] for key in ("id", "state", "submit", "start", "end", "nodes")}
        record["name"] = job["name"]
        same = (job["id"], job["submit"])
        for index, old in enumerate(records):
            if (old["id"], old["submit"]) == same:
                records[index] = record
                return
        records.append(record)
