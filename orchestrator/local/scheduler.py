"""Find, signal and end the processes of runs on this machine."""

import os
import signal as signals
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ActionError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore.store import attempt_numbers, read_json
from orchestrator.scheduler import Answer, Ids, JobRecord, JobState, no_ids

_INTERPRETERS = ("bash", "python")


@dataclass(frozen=True, slots=True)
class LocalScheduler:
    """This machine as a scheduler of the ``runs``, by job name.

    A job is alive while a process runs one of its scripts. Process ids are recycled, so a process
    counts only if its command line names the run's own files.
    """

    runs: Mapping[str, RunLayout]

    def jobs(self, names: Sequence[str], *, ids: Ids = no_ids) -> Answer:
        """Return a record for each run that has been started."""
        records = (_record(name, self.runs[name]) for name in names if name in self.runs)
        return Answer(tuple(record for record in records if record is not None))

    def requeue(self, job_id: str) -> None:
        """Refuse: a process that ended cannot be started again under its id."""
        raise ActionError(["requeue", job_id], returncode=1, stderr="a process cannot be requeued")

    def start_now(self, job_id: str) -> None:
        """Do nothing: nothing is ever pending here."""

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Do nothing: there is one machine."""

    def node_count(self, partition: str | None) -> int | None:
        """Return None: there is one machine, which nothing can do without."""
        return None

    def cancel(self, job_id: str) -> None:
        """Kill what runs the job's scripts; workers die with their torchrun."""
        for process in self._processes(job_id):
            _kill(process, signals.SIGKILL)

    def notify(self, job_id: str, *, signal: str) -> None:
        """Send the notice to the batch shell, which passes it on."""
        number = getattr(signals, f"SIG{signal}")
        for layout in self._layouts(job_id):
            for process, words in _running(layout):
                if str(layout.script) in words and words[0].endswith("bash"):
                    _kill(process, number)

    def _layouts(self, job_id: str) -> list[RunLayout]:
        return [layout for layout in self.runs.values() if job_id_of(layout) == job_id]

    def _processes(self, job_id: str) -> list[int]:
        return [pid for layout in self._layouts(job_id) for pid, _ in _running(layout)]


def job_id_of(layout: RunLayout) -> str | None:
    """Return the id that submitit gave the newest job of the run."""
    try:
        return (layout.submitit / "job-id").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _record(name: str, layout: RunLayout) -> JobRecord | None:
    job_id = job_id_of(layout)
    alive = any(True for _ in _running(layout))
    if job_id is None and not alive:
        return None
    return JobRecord(
        job_id=job_id or "by hand",
        name=name,
        state=JobState.RUNNING if alive else JobState.FAILED,
        in_queue=alive,
        nodes=os.uname().nodename,
        exit_code=None if alive else _exit_code(layout),
    )


def _exit_code(layout: RunLayout) -> int | None:
    numbers = attempt_numbers(layout)
    if not numbers:
        return None
    code = (read_json(layout.attempt(numbers[-1]).exit) or {}).get("code")
    return code if isinstance(code, int) else None


def _running(layout: RunLayout) -> Iterator[tuple[int, list[str]]]:
    """Yield (process id, command line) of what runs the run's own files, not of who reads them."""
    ours = {str(layout.script), str(layout.node_script), str(layout.submitit), str(layout.train)}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        named = Path(words[0]).name.startswith(_INTERPRETERS) and bool(ours.intersection(words))
        if named or _belongs(entry, layout):
            yield int(entry.name), words


def _belongs(process: Path, layout: RunLayout) -> bool:
    """Return whether the run's script started a process.

    A worker may name none of the run's files and have a session of its own.
    """
    try:
        environment = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"FSDPQ_RUN_DIR=" + os.fsencode(layout.root) in environment


def _kill(process: int, number: signals.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass
    except PermissionError as problem:
        argv = ["kill", f"-{number}", str(process)]
        raise ActionError(argv, returncode=1, stderr=str(problem)) from None
