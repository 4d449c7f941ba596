"""The five commands of the fake Slurm: argument lists in, Slurm's text and exit code out.

Each call may meet a fault that the round has planned: an error, a lost answer, a slow one, or the
death of the watcher that waits for it, before or after it has taken effect.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from tests.rounds.jobs import ENDED, SAVE_S, Job, Slurm

# How long a job that was put back shows the reason of its last end.
LOOKED_AT_S = 2.0
NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
NO_DATABASE = "sacct: error: Problem talking to the database: Connection refused"
NO_ACCOUNTING = "Slurm accounting storage is disabled"
_FIELD = re.compile(r"(\w+):(\d+)(\W)")


def main(command: str, folder: str, argv: Sequence[str]) -> NoReturn:
    """Be ``command`` of the Slurm that lives in ``folder``."""
    with Slurm(folder) as slurm:
        call = Call(slurm, command, argv)
        code = call.answer() if call.fault != "hang" else None
    if code is None:
        time.sleep(call.seconds)  # others may look and act meanwhile
        with Slurm(folder) as slurm:
            call.slurm = slurm
            code = call.answer()
    sys.stdout.write(call.out)
    sys.stdout.flush()
    sys.stderr.write(call.error)
    sys.stderr.flush()
    if call.fault == "answer-kill":
        time.sleep(call.seconds)  # the watcher has read some of it, or acted on it
        kill_watcher()
    os._exit(code)


def kill_watcher() -> None:
    """Kill the watcher that this command belongs to, if it still is that process."""
    pid, start = int(os.environ["ROUNDS_PID"]), os.environ["ROUNDS_START"]
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            alive = file.read().rpartition(")")[2].split()[19] == start
        if alive:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass


class Call:
    """One call of one command.

    Attributes:
        fault: What goes wrong with it; "" where nothing does.
        seconds: How late or slow it is then.
        out, error: What it prints.
    """

    def __init__(self, slurm: Slurm, command: str, argv: Sequence[str]) -> None:
        self.slurm = slurm
        self.command = command
        self.argv = list(argv)
        self.out = self.error = ""
        self.kind = argv[0] if command == "scontrol" else command
        self.seconds = 0.0
        self.fault = self._fault()

    def _fault(self) -> str:
        """Take the first planned fault that is meant for such a call of such a caller."""
        faults = self.slurm.state["faults"]
        who = os.environ.get("ROUNDS_WHO")
        for fault in faults:
            if fault["call"] == self.kind and fault["who"] in (None, who):
                faults.remove(fault)
                self.slurm.note("fault", self.slurm.now, call=self.kind, fault=fault["fault"])
                self.seconds = float(fault["seconds"])
                return str(fault["fault"])
        return ""

    def answer(self) -> int:
        """Do it, with its fault, and return the exit code."""
        match self.fault:
            case "down" if self.kind == "requeue":
                return self._fail(f"Unexpected message received for job {self.argv[1]}")
            case "down":
                return self._fail(f"{self._prefix()}{NO_CONTROLLER}")
            case "lost-none":
                return self._fail(f"{self._prefix()}{TIMED_OUT}")
            case "lost-late":
                self._later()
                return self._fail(f"{self._prefix()}{TIMED_OUT}")
            case "kill-before":
                kill_watcher()
                return 1
            case "kill-late":
                kill_watcher()
                self._later()
                return 1
            case "kill-effect":
                kill_watcher()
            case "slow":
                self.slurm.clock.forward(self.seconds)
                self.slurm.pass_time()
        code = getattr(self, f"_{self.command}")()
        if self.fault == "lost-effect" and code == 0:
            self.out = ""
            return self._fail(f"{self._prefix()}{TIMED_OUT}")
        if self.fault == "effect-kill":
            self.slurm.store()
            kill_watcher()
        return int(code)

    def _prefix(self) -> str:
        return {
            "squeue": "slurm_load_jobs error: ",
            "sbatch": "sbatch: error: Batch job submission failed: ",
            "sacct": "sacct: error: ",
        }.get(self.command, "")

    def _fail(self, text: str) -> int:
        self.error = text + "\n"
        return 1

    def _later(self) -> None:
        """Let the controller take the job when nobody waits for the answer any more."""
        at = self.slurm.now + self.seconds
        by = os.environ.get("ROUNDS_WHO", "")
        arrival = {"at": at, "script": self.argv[-1], "by": by}
        self.slurm.state["arrivals"].append(arrival)
        self.slurm.note("late", self.slurm.now, comes=round(at, 3))

    # sbatch

    def _sbatch(self) -> int:
        if self.fault == "refuse":
            said = "Job violates accounting/QOS policy (job submit limit, user's size and/or time)"
            return self._fail(f"{self._prefix()}{said}")
        job = self.slurm.submit(self.argv[-1], self.slurm.now, by=os.environ.get("ROUNDS_WHO", ""))
        self.slurm.pass_time()
        self.out = f"{job['id']}\n"
        return 0

    # squeue

    def _squeue(self) -> int:
        (form,) = (word for word in self.argv if word.startswith("--Format="))
        fields = _FIELD.findall(form.partition("=")[2])
        every = "--states=all" in self.argv
        shown = [job for job in self.slurm.jobs.values() if every or job["state"] not in ENDED]
        shown.sort(key=lambda job: -int(job["id"]))
        for job in shown:
            job = {**job, "reason": self._reason(job)}
            cells = (_cell(job, name)[: int(width)].ljust(int(width)) for name, width, _ in fields)
            marks = (mark for _, _, mark in fields)
            self.out += "".join(f"{c}{m}" for c, m in zip(cells, marks, strict=True)) + "\n"
        return 0

    def _reason(self, job: Job) -> str:
        """Why it is pending; the scheduler says so only when it has come by."""
        if job["state"] != "PENDING" or self.slurm.now - job["submit"] < LOOKED_AT_S:
            return str(job["reason"])
        if job["begin"] > self.slurm.now:
            return "BeginTime"
        return "Dependency" if self.slurm.waits_its_turn(job) else "None"

    # sacct

    def _sacct(self) -> int:
        if self.slurm.state["accounting_off"]:
            return self._fail(NO_ACCOUNTING)
        if self.fault == "no database":
            return self._fail(NO_DATABASE)
        (ids,) = (word.partition("=")[2] for word in self.argv if word.startswith("--jobs="))
        (form,) = (word.partition("=")[2] for word in self.argv if word.startswith("--format="))
        for record in self.slurm.state["accounting"]:
            if record["id"] in ids.split(","):
                cells = [_accounted(record, field) for field in form.split(",")]
                self.out += "|".join(cells) + "\n"
        return 0

    # scontrol

    def _scontrol(self) -> int:
        return self._requeue() if self.argv[0] == "requeue" else self._update()

    def _requeue(self) -> int:
        job_id, now = self.argv[1], self.slurm.now
        job = self.slurm.jobs.get(job_id)
        if job is None:
            return self._fail(f"Invalid job id specified for job {job_id}")
        if self.fault == "refuse":
            return self._fail(f"Requested operation is presently disabled for job {job_id}")
        if job["state"] == "PENDING":
            return self._fail(f"Job is pending execution for job {job_id}")
        self.slurm.put_back(job, now, by=os.environ.get("ROUNDS_WHO", ""))
        self.slurm.pass_time()
        return 0

    def _update(self) -> int:
        job_id = self.argv[1].partition("=")[2]
        job = self.slurm.jobs.get(job_id)
        if job is None:
            return self._fail(f"Invalid job id specified for job {job_id}")
        if self.argv[2] == "StartTime=now" and job["state"] == "PENDING":
            job["begin"] = self.slurm.now
            self.slurm.note("start now", self.slurm.now, job_id=job["id"])
        return 0

    # scancel

    def _scancel(self) -> int:
        job = self.slurm.jobs.get(self.argv[-1])
        now, signalled = self.slurm.now, any(word.startswith("--signal") for word in self.argv)
        if job is None and signalled:
            where = f"Kill job error on job id {self.argv[-1]}"
            return self._fail(f"scancel: error: {where}: Invalid job id specified")
        if job is None:  # to end what is not there is no error
            return 0
        if not signalled and job["state"] not in ENDED:
            self.slurm.end(job, "CANCELLED", now)
        elif signalled and job["state"] == "RUNNING":
            job["next"] = [now + SAVE_S, "saved"]
        return 0


def _time(seconds: float | None, none: str) -> str:
    if seconds is None:
        return none
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _cell(job: Job, field: str) -> str:
    """Return what squeue --Format prints for one field of a job."""
    # That of a job which was put back is planned from the first.
    start = job["begin"] if job["start"] is None and job["restart"] else job["start"]
    cells: dict[str, Any] = {
        "JobID": job["id"],
        "State": job["state"],
        "RestartCnt": job["restart"],
        "Reason": job["reason"],
        "SubmitTime": _time(job["submit"], "N/A"),
        "StartTime": _time(start, "N/A"),
        "EndTime": _time(job["end"], "N/A"),
        "exit_code": job["code"],
        "Partition": job["partition"],
        "NodeList": job["nodes"],
        "Name": job["name"],
    }
    return str(cells[field])


def _accounted(record: Job, field: str) -> str:
    """Return what sacct --parsable2 prints for one field of a record."""
    cancelled = f"CANCELLED by {os.getuid()}"
    cells: dict[str, Any] = {
        "JobIDRaw": record["id"],
        "State": cancelled if record["state"] == "CANCELLED" else record["state"],
        "ExitCode": "1:0" if record["state"] == "FAILED" else "0:0",
        "Submit": _time(record["submit"], "Unknown"),
        "Start": _time(record["start"], "Unknown"),
        "End": _time(record["end"], "Unknown"),
        "Partition": "spot",
        "NodeList": record["nodes"] or "None assigned",
        "JobName": record["name"],
    }
    return str(cells[field])
