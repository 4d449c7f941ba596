"""Slurm's text to JobRecord. Pure.

Text and not --json: its shape changed with 23.11 and again with 24.05, the fields did not.
"""

from datetime import datetime

from orchestrator.errors import QueryError
from orchestrator.scheduler import JobRecord, JobState

# (field of squeue --Format, width). squeue pads and cuts to the width; what is cut here is never
# compared. The name is last, since it may hold the separator.
SQUEUE_FIELDS = (
    ("JobID", 40),
    ("State", 32),
    ("RestartCnt", 12),
    ("Reason", 64),
    ("SubmitTime", 24),
    ("StartTime", 24),
    ("EndTime", 24),
    ("exit_code", 12),
    ("Partition", 64),
    ("NodeList", 1024),
    ("Name", 512),
)
SACCT_FIELDS = (
    "JobIDRaw",
    "State",
    "ExitCode",
    "Submit",
    "Start",
    "End",
    "Partition",
    "NodeList",
    "JobName",
)


def state(word: str) -> JobState:
    """Return the state that ``word`` names; a word we do not know is UNKNOWN, never a guess.

    >>> state("CANCELLED by 1060117793"), state("COMPLETI+"), state("out_of_memory")
    (<JobState.CANCELLED: 'CANCELLED'>, <JobState.UNKNOWN: 'UNKNOWN'>, <JobState.OUT_OF_MEMORY: 'OUT_OF_MEMORY'>)
    """  # noqa: E501
    first = word.split()[0].upper() if word.split() else ""
    try:
        return JobState(first)
    except ValueError:
        return JobState.UNKNOWN


def time(text: str) -> float | None:
    """Return seconds since 1970 from a time in the login node's zone; None where there is none.

    >>> time("N/A"), time("Unknown"), time("None")
    (None, None, None)
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def squeue(text: str, *, names: frozenset[str]) -> list[JobRecord]:
    """Return the records of the jobs called one of ``names``.

    Other jobs are passed over, whatever their names do to their rows; a row of ours that does not
    read is an error, not an absence. So is an answer of which no row has the fields asked for.
    """
    rows = [line.split("|", len(SQUEUE_FIELDS) - 1) for line in text.split("\n")]
    if text.strip() and not any(len(row) == len(SQUEUE_FIELDS) for row in rows):
        raise _unreadable("squeue", text.strip().splitlines()[0][:200])
    # The separator closes the last field too; a name that its own newline cut off has none.
    ours = ((row, row[-1][:-1].rstrip()) for row in rows if row[-1].endswith("|"))
    return [
        _squeue_record([cell.strip() for cell in row], name)
        for row, name in ours
        if len(row) == len(SQUEUE_FIELDS) and name in names
    ]


def _squeue_record(cells: list[str], name: str) -> JobRecord:
    job_id, word, restart, reason, submit, start, end, code, partition, nodes, _ = cells
    try:
        count = int(restart)
    except ValueError:
        raise _unreadable("squeue", "|".join(cells)) from None
    return JobRecord(
        job_id=job_id,
        name=name,
        state=state(word),
        restart=count,
        reason="" if reason == "None" else reason,
        nodes=nodes,
        partition=partition,
        submit=time(submit),
        start=time(start),
        end=time(end),
        exit_code=_exit_code(code),
        signal=int(code) & 127 if code.isdigit() else 0,
    )


def has_exclusions(text: str) -> bool:
    """Return whether `scontrol show job` names nodes that the job leaves out.

    Job names may hold anything, so the key is looked for where no name can be: before JobName
    there is only the id, and the name ends at UserId.

    >>> has_exclusions("JobId=7 JobName=x ExcNodeList=n1 UserId=a(1) ExcNodeList=(null)")
    False
    """
    rest = text.rpartition(" UserId=")[2]
    words = [word for word in rest.split() if word.startswith("ExcNodeList=")]
    return bool(words) and words[-1].removeprefix("ExcNodeList=") not in ("", "(null)")


def node_count(text: str, *, any_partition: bool) -> int:
    r"""Return how many nodes there are that can run jobs, from rows `node|state|partition`.

    >>> node_count("n1|idle|spot*\nn1|idle|prod\nn2|drained|spot*\nn3|mixed|spot*", any_partition=False)
    2
    """  # noqa: E501
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 2]
    return len(
        {
            node
            for node, word, partition in rows
            if (any_partition or partition.endswith("*")) and not word.startswith(_UNUSABLE)
        }
    )


# States of nodes that no job is started on, as sinfo spells them.
_UNUSABLE = ("down", "drain", "fail", "maint", "unknown", "inval", "power", "reboot")


def _exit_code(wait_status: str) -> int | None:
    """Return the exit code in a raw wait status: its upper byte, unless a signal was the end.

    >>> _exit_code("768"), _exit_code("4021"), _exit_code("N/A")
    (3, 0, None)
    """
    if not wait_status.isdigit():
        return None
    return 0 if int(wait_status) & 127 else int(wait_status) >> 8


def sacct(text: str, *, names: frozenset[str]) -> list[JobRecord]:
    """Return accounting's records of the jobs called one of ``names``, one a requeue.

    Ids are recycled over the years, so a record counts only with a name of ours.

    >>> sacct("7|CANCELLED by 1000|0:15|2026-01-01T10:00:00|None|Unknown|spot|None assigned|j-1",
    ...       names=frozenset({"j-1"}))[0].signal
    15
    """
    rows = (line.split("|", len(SACCT_FIELDS) - 1) for line in text.split("\n"))
    return [
        _sacct_record(row) for row in rows if len(row) == len(SACCT_FIELDS) and row[-1] in names
    ]


def _sacct_record(cells: list[str]) -> JobRecord:
    job_id, word, code, submit, start, end, partition, nodes, name = cells
    exit_code, _, signal = code.partition(":")
    return JobRecord(
        job_id=job_id,
        name=name,
        state=state(word),
        reason=word if state(word) is JobState.CANCELLED else "",
        nodes="" if nodes == "None assigned" else nodes,
        partition=partition,
        in_queue=False,
        submit=time(submit),
        start=time(start),
        end=time(end),
        exit_code=int(exit_code) if exit_code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else 0,
    )


def job_id(text: str) -> str:
    r"""Return the id in the answer of `sbatch --parsable`: the last line, before any cluster.

    Raises:
        ValueError: There is none.

    >>> job_id("a banner of the site\n3969755;nautilus\n")
    '3969755'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = lines[-1].partition(";")[0] if lines else ""
    if not found.isdigit():
        raise ValueError(f"no job id in the answer of sbatch: {text!r}")
    return found


# What a command says when its request got lost, or only the answer to it.
_NO_ANSWER = (
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Connection reset",
    "Broken pipe",
    "Unable to contact slurm controller",
    "Unexpected message received",  # scontrol requeue without a controller (22.05)
)


def refused(stderr: str) -> bool:
    """Return whether sbatch says that Slurm would not take the job, rather than that nobody knows.

    >>> refused("allocation failure: Invalid account or account/partition combination specified")
    True
    >>> refused("sbatch: fatal: Could not establish a configuration source")
    False
    """
    words = ("allocation failure", "submission failed", "error: invalid", "unrecognized option")
    return not no_answer(stderr) and any(word in stderr.lower() for word in words)


def no_answer(stderr: str) -> bool:
    """Return whether a command failed without a word from the controller.

    >>> no_answer("Socket timed out on send/recv operation")
    True
    >>> no_answer("Requested operation is presently disabled for job 7")
    False
    """
    return any(words in stderr for words in _NO_ANSWER)


def _unreadable(command: str, line: str) -> QueryError:
    return QueryError([command], returncode=0, stderr=f"cannot read this row: {line!r}")
