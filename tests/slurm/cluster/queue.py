"""Jobs and nodes of the cluster as Slurm's own commands show them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from .daemons import tail
from .shell import Shell

POLL_S = 0.2
# Where a field of `scontrol show job -o` begins, such as ` JobState=` or ` Socks/Node=`.
FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")


class Queue(Shell):
    """Submits jobs, looks at them and waits for them."""

    def sbatch(self, options: Sequence[str], script: str, *, user: str = "alice") -> int:
        """Submit a script given as text; returns the job id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        done = self.run(["sbatch", "--parsable", *options], user=user, input=text)
        return int(done.stdout.strip().split(";")[0])

    def submit_prod(self, nodes: int = 2, seconds: int = 5, *, user: str = "bob") -> int:
        """Submit an urgent job that takes whole hosts, and so preempts what runs on them."""
        options = ["--partition=prod", f"--nodes={nodes}", "--exclusive", "--job-name=urgent"]
        return self.sbatch([*options, "--output=/dev/null"], f"sleep {seconds}", user=user)

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol show job`; empty once the controller has forgotten the job.

        A value that holds a blank and then the look of a field is cut there.
        """
        done = self.run(["scontrol", "show", "job", "-o", str(job_id)], user="root", check=False)
        if done.returncode != 0:
            return {}
        parts = FIELD.split(done.stdout.strip())
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    def state(self, job_id: int) -> str:
        """The job's state, such as RUNNING; empty once the controller has forgotten it."""
        return self.job(job_id).get("JobState", "")

    def node_states(self) -> dict[str, str]:
        """Host name to state as sinfo prints it, such as `idle` or `down*`."""
        done = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root")
        return dict(line.split() for line in done.stdout.splitlines())

    def wait_for(self, predicate: Callable[[], object], timeout: float, what: str) -> None:
        """Return once the predicate holds.

        Raises:
            TimeoutError: With the queue, the hosts and the end of the controller's log.
        """
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {what}\n{self.situation()}")
            time.sleep(POLL_S)

    def wait_for_state(self, job_id: int, *states: str, timeout: float = 30) -> None:
        """Return once the job is in one of the states."""
        what = f"job {job_id} is {' or '.join(states)}"
        self.wait_for(lambda: self.state(job_id) in states, timeout, what)

    def situation(self) -> str:
        """What a person would look at first when something hangs."""
        commands = (["squeue", "--all", "--long"], ["sinfo", "--all", "--Node", "--long"])
        shown = [self.run(argv, user="root", check=False) for argv in commands]
        log = tail(self.work / "log" / "slurmctld.log")
        return "\n".join([*(done.stdout + done.stderr for done in shown), log])

    def cancel_all(self, *, timeout: float = 60) -> None:
        """End all jobs at once and wait until they are gone."""
        self.wait_for(self._cancelled, timeout, "all jobs are gone")

    def _cancelled(self) -> bool:
        """Whether no job is left; else each has been told to end."""
        listing = self.run(["squeue", "--all", "--noheader", "--format=%A"], user="root")
        if jobs := sorted(set(listing.stdout.split())):
            self.run(["scancel", *jobs], user="root", check=False)
            # A step that ignores SIGTERM would linger for KillWait, whatever scancel is told.
            self.kill_user_processes()
        return not jobs
