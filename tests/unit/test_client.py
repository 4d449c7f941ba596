"""Slurm's commands from the outside: small programs on PATH stand in for them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import ActionError, ActionUnknownError, QueryError, SchedulerError
from orchestrator.scheduler import Ids, JobState
from orchestrator.slurm import client, commands
from orchestrator.slurm.client import SlurmScheduler, clean_environment

from .builders import DATA

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a program of a few lines of bash on PATH; it notes how it was called in `calls`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch"):
        (tmp_path / name).write_text("#!/bin/bash\nexit 99\n")
        (tmp_path / name).chmod(0o755)

    def write(name: str, body: str) -> None:
        (tmp_path / name).write_text(f'#!/bin/bash\necho "$0 $*" >>"$CALLS"\n{body}\n')

    return write


def calls() -> list[str]:
    lines = Path(os.environ["CALLS"]).read_text().splitlines()
    return [line.rpartition("/")[2] if " " not in line else _short(line) for line in lines]


def _short(line: str) -> str:
    program, _, rest = line.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}"


SLURM = SlurmScheduler(20001)
OURS = "llama-1a2b3c4d"


# --- the environment --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            "SLURM_JOB_ID",
            "SLURM_NTASKS",
            "SLURM_TIME_FORMAT",
            "SLURM_CLUSTERS",
            "SLURM_EXPORT_ENV",
        ),
        *("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_GRES", "SRUN_CPUS_PER_TASK"),
        *("SQUEUE_STATES", "SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_USERS", "SACCT_FORMAT"),
        *("SALLOC_ACCOUNT", "SINFO_FORMAT", "SCANCEL_USER", "SCONTROL_ALL"),
    ],
)
def test_what_would_steer_slurm_is_taken_away(name: str) -> None:
    assert clean_environment({name: "x", "A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    "name", ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "PATH", "SLURMX", "MY_SLURM_X", "HOME"]
)
def test_what_stays(name: str) -> None:
    assert clean_environment({name: "x"}) == {name: "x"}


def test_the_environment_that_is_given_is_not_changed() -> None:
    given = {"SLURM_JOB_ID": "7"}
    clean_environment(given)
    assert given == {"SLURM_JOB_ID": "7"}


def unless_found(*ids: str) -> Ids:
    """Ask accounting for ``ids`` that the queue does not know."""
    return lambda found: set(ids) - {record.job_id for record in found}


@pytest.mark.processes
def test_every_command_gets_a_clean_environment(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    fake("squeue", 'echo "$SQUEUE_STATES,$SLURM_CONF"')
    done = client.run(["squeue"], timeout_s=10, error=QueryError)
    assert done.stdout == ",/etc/slurm.conf\n"


# --- commands are built, not typed ------------------------------------------------------------


def test_the_query_asks_for_every_state_and_every_field_of_the_parser() -> None:
    argv = commands.squeue(20001)
    assert argv[:4] == ["squeue", "--noheader", "--states=all", "--user=20001"]
    assert argv[4].startswith("--Format=JobID:40|,State:32|,")
    assert argv[4].endswith("Name:512|")


def test_accounting_is_asked_for_every_requeue_with_the_name_last() -> None:
    argv = commands.sacct(["7", "8"])
    assert {"--duplicates", "--allocations", "--parsable2", "--jobs=7,8"} <= set(argv)
    assert argv[-1].endswith(",JobName")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (commands.sbatch("/r r/s"), ["sbatch", "--parsable", "/r r/s"]),
        (commands.requeue("36_2"), ["scontrol", "requeue", "36_2"]),
        (commands.start_now("7"), ["scontrol", "update", "JobId=7", "StartTime=now"]),
        (commands.cancel("7"), ["scancel", "7"]),
        (commands.notify("7", "USR2"), ["scancel", "--signal=USR2", "7"]),
    ],
)
def test_actions(argv: list[str], expected: list[str]) -> None:
    assert argv == expected


# --- how a command can fail -------------------------------------------------------------------


@pytest.mark.processes
def test_an_exit_code_keeps_argv_code_and_stderr(fake: Fake) -> None:
    fake("squeue", "echo partial; echo ' bad luck ' >&2; exit 3")
    with pytest.raises(QueryError) as caught:
        client.run(["squeue", "-x"], timeout_s=10, error=QueryError)
    error = caught.value
    assert (error.argv, error.returncode, error.stderr) == (("squeue", "-x"), 3, "bad luck")
    assert str(error) == "squeue -x exited with 3: bad luck"


@pytest.mark.processes
def test_no_answer_in_time_is_an_error(fake: Fake) -> None:
    fake("squeue", "exec sleep 60")
    with pytest.raises(QueryError, match="gave no answer in time") as caught:
        client.run(["squeue"], timeout_s=0.2, error=QueryError)
    assert caught.value.returncode is None


@pytest.mark.processes
def test_a_command_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ActionError, match="no scontrol on PATH; is this a login") as caught:
        client.run(["scontrol"], timeout_s=10, error=ActionError)
    assert caught.value.returncode == 127


@pytest.mark.processes
def test_bytes_that_are_no_utf_8_are_replaced(fake: Fake) -> None:
    fake("squeue", r"printf 'caf\xe9 \xff\xfe\n'")
    done = client.run(["squeue"], timeout_s=10, error=QueryError)
    assert done.stdout == "caf\ufffd \ufffd\ufffd\n"


@pytest.mark.processes
def test_a_command_cannot_read_the_terminal(fake: Fake) -> None:
    fake("scontrol", "read -r answer && echo read || echo closed")
    assert client.run(["scontrol"], timeout_s=10, error=ActionError).stdout == "closed\n"


# --- asking -----------------------------------------------------------------------------------


def queue(fake: Fake, file: str = "squeue.txt") -> None:
    fake("squeue", f"cat {DATA / file}")


def accounting(fake: Fake, text: str = "") -> None:
    fake("sacct", f"cat {DATA / 'sacct.txt'}" if not text else f"printf '%s\\n' '{text}'")


@pytest.mark.processes
def test_one_question_for_all_runs(fake: Fake) -> None:
    queue(fake)
    answer = SLURM.jobs([OURS, "done-11112222", "bad-33334444"], ids=unless_found("1", "4", "5"))
    assert answer.records[0].job_id == "1"
    assert {record.name for record in answer.records} == {OURS, "done-11112222", "bad-33334444"}
    assert answer.silent == ""
    assert len(calls()) == 1


@pytest.mark.processes
def test_what_runs_comes_before_what_waits_and_that_before_what_ended(fake: Fake) -> None:
    queue(fake)
    records = SLURM.jobs([OURS, "done-11112222"], ids=unless_found("1")).records
    states = [record.state for record in records]
    assert states == [JobState.RUNNING, JobState.PENDING, JobState.PENDING, JobState.COMPLETED]


@pytest.mark.processes
def test_accounting_is_asked_only_for_what_the_queue_has_forgotten(fake: Fake) -> None:
    queue(fake)
    accounting(fake)
    answer = SLURM.jobs([OURS, "precan-12345678"], ids=unless_found("1", "26"))
    assert calls()[1].startswith("sacct ")
    assert "--jobs=26 " in calls()[1]
    assert [(r.job_id, r.state, r.in_queue) for r in answer.records if r.job_id == "26"] == [
        ("26", JobState.PREEMPTED, False)
    ]
    # What the queue knows of job 1 comes first, and accounting's word on it after that.
    assert answer.records[0].in_queue


@pytest.mark.processes
def test_the_newest_of_many_records_comes_first(fake: Fake) -> None:
    fake("squeue", "true")
    rows = [
        f"9|{state}|0:0|2026-01-0{day}T10:00:00|2026-01-0{day}T11:00:00|Unknown|p|n|{OURS}"
        for state, day in (("REQUEUED", 1), ("COMPLETED", 3), ("PREEMPTED", 2))
    ]
    accounting(fake, "\n".join(rows))
    records = SLURM.jobs([OURS], ids=unless_found("9")).records
    assert next(r.state for r in records if r.state.ended) is JobState.COMPLETED


@pytest.mark.processes
def test_no_record_anywhere_is_an_answer(fake: Fake) -> None:
    fake("squeue", "true")
    fake("sacct", "true")
    answer = SLURM.jobs([OURS], ids=unless_found("7"))
    assert (answer.records, answer.silent) == ((), "")


@pytest.mark.processes
@pytest.mark.parametrize("stderr", ["squeue-down.stderr", "sacct-down.stderr"])
def test_a_queue_that_does_not_answer_is_no_empty_queue(fake: Fake, stderr: str) -> None:
    fake("squeue", f"cat {DATA / stderr} >&2; exit 1")
    with pytest.raises(QueryError):
        SLURM.jobs([OURS], ids=unless_found("7"))


@pytest.mark.processes
def test_silent_accounting_leaves_what_the_queue_says(fake: Fake) -> None:
    queue(fake)
    fake("sacct", f"cat {DATA / 'sacct-down.stderr'} >&2; exit 1")
    answer = SLURM.jobs([OURS, "gone"], ids=unless_found("1", "99"))
    assert answer.records[0].job_id == "1"
    assert "Connection refused" in answer.silent


@pytest.mark.processes
def test_a_site_without_accounting_is_not_silent(fake: Fake) -> None:
    fake("squeue", "true")
    fake("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert SLURM.jobs([OURS], ids=unless_found("7")).silent == ""


# --- acting -----------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_job_that_already_waits_counts_as_requeued(fake: Fake) -> None:
    fake("scontrol", f"cat {DATA / 'requeue-pending.stderr'} >&2; exit 1")
    SLURM.requeue("3")
    assert calls() == ["scontrol requeue 3"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "stderr",
    ["Invalid job id specified for job 7", "Requested operation is presently disabled for job 7"],
)
def test_a_requeue_that_is_refused(fake: Fake, stderr: str) -> None:
    fake("scontrol", f"echo '{stderr}' >&2; exit 1")
    with pytest.raises(ActionError, match=stderr):
        SLURM.requeue("7")


@pytest.mark.processes
@pytest.mark.parametrize(
    "stderr",
    [
        "Socket timed out on send/recv operation",
        "Unable to contact slurm controller (connect failure)",
        "Unexpected message received for job 7",  # what it says on 22.05 without a controller
    ],
)
def test_a_requeue_without_an_answer_is_no_refusal(fake: Fake, stderr: str) -> None:
    fake("scontrol", f"echo '{stderr}' >&2; exit 1")
    with pytest.raises(ActionUnknownError, match=re.escape(stderr)):
        SLURM.requeue("7")


@pytest.mark.processes
def test_a_requeue_that_takes_too_long_is_no_refusal(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("scontrol", "exec sleep 60")
    monkeypatch.setattr(client, "ACTION_TIMEOUT_S", 0.1)
    with pytest.raises(ActionUnknownError, match="no answer"):
        SLURM.requeue("7")


@pytest.mark.processes
def test_each_action_is_its_command(fake: Fake) -> None:
    for name in ("scontrol", "scancel"):
        fake(name, "true")
    SLURM.start_now("7")
    SLURM.cancel("7")
    SLURM.notify("7", signal="USR1")
    assert calls() == [
        "scontrol update JobId=7 StartTime=now",
        "scancel 7",
        "scancel --batch --signal=USR1 7",
        "scancel --signal=USR1 7",
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    "stderr",
    [
        (DATA / "notify-unknown.stderr").read_text(),
        "scancel: error: Kill job error on job id 7: Job/step already completing or completed",
    ],
)
def test_ending_or_signalling_a_job_that_is_gone_counts_as_done(fake: Fake, stderr: str) -> None:
    fake("scancel", f"echo '{stderr.strip()}' >&2; exit 1")
    SLURM.cancel("7")
    SLURM.notify("7", signal="USR2")


@pytest.mark.processes
def test_ending_a_job_of_somebody_else_does_not(fake: Fake) -> None:
    text = "scancel: error: Kill job error on job id 7: Access/permission denied"
    fake("scancel", f"echo '{text}' >&2; exit 1")
    with pytest.raises(SchedulerError, match="permission denied"):
        SLURM.cancel("7")


@pytest.mark.processes
def test_of_a_requeued_jobs_records_the_newest_counts(fake: Fake) -> None:
    fake("squeue", "true")
    rows = (
        "8|REQUEUED|0:0|2026-01-01T10:00:00|2026-01-01T10:00:01|2026-01-01T10:00:20|s|n1|a-1",
        "8|FAILED|1:0|2026-01-01T10:00:20|2026-01-01T10:00:24|2026-01-01T10:01:00|s|n1|a-1",
    )
    for order in (rows, rows[::-1]):
        fake("sacct", "cat <<'END'\n" + "\n".join(order) + "\nEND")
        (record,) = SLURM.jobs(["a-1"], ids=unless_found("8")).records
        assert record.state is JobState.FAILED
