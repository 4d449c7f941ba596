"""Captured text of Slurm 22.05, and hostile variations of it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from orchestrator.errors import QueryError
from orchestrator.scheduler import JobRecord, JobState
from orchestrator.slurm import parse

from .builders import DATA

QUEUE = (DATA / "squeue.txt").read_bytes().decode("utf-8", errors="replace")
PREEMPTED = (DATA / "squeue-preempted.txt").read_text()
ACCOUNTED = (DATA / "sacct.txt").read_text()
OURS = "llama-1a2b3c4d"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def queued(name: str, text: str = QUEUE) -> JobRecord:
    (record,) = parse.squeue(text, names=frozenset({name}))
    return record


def accounted(name: str, text: str = ACCOUNTED) -> list[JobRecord]:
    return parse.sacct(text, names=frozenset({name}))


def test_a_running_job() -> None:
    (record,) = (r for r in parse.squeue(QUEUE, names=frozenset({OURS})) if r.job_id == "1")
    assert record == JobRecord(
        job_id="1",
        name=OURS,
        state=JobState.RUNNING,
        restart=0,
        reason="",
        nodes="n[1-2]",
        partition="spot",
        in_queue=True,
        submit=at("2026-11-29T19:26:20"),
        start=at("2026-11-29T19:26:21"),
        end=at("2026-11-29T21:26:21"),
        exit_code=0,
        signal=0,
    )


def test_names_that_only_look_like_ours_are_passed_over() -> None:
    # Among them: "llama-1a2b3c4d\nrest", "llama-1a2b3c4d|" and one with a vertical tab. A trailing
    # blank is the one thing that squeue's padding hides: job 20.
    records = parse.squeue(QUEUE, names=frozenset({OURS}))
    assert [record.job_id for record in records] == ["2", "20", "1"]
    assert records[0].reason == "Dependency"
    assert records[0].start is None


@pytest.mark.parametrize(
    ("name", "job_id"),
    [
        ("crazy|name|RUNNING|0", "14"),
        ("x=y Reason=fake JobState=COMPLETED", "15"),
        ("tail|", "18"),
        ("a\x0bb", "21"),
        ("caf\u00e9", "22"),
        ("caf\ufffd", "24"),
    ],
)
def test_a_hostile_name_neither_shifts_nor_spoofs_its_row(name: str, job_id: str) -> None:
    record = queued(name)
    assert (record.job_id, record.state, record.reason) == (job_id, JobState.PENDING, "JobHeldUser")


def test_every_row_of_a_hostile_queue_reads_but_those_of_broken_names() -> None:
    rows = QUEUE.rstrip("\n").split("\n")
    names = {row.split("|", 10)[-1][:-1].rstrip() for row in rows if row.count("|") >= 10}
    records = parse.squeue(QUEUE, names=frozenset(names))
    # 25 jobs and one task of a heterogeneous one; "line" and "rest" cut off two rows.
    assert sorted(int(r.job_id) for r in records) == [*range(1, 16), *range(18, 26)]


def test_a_requeued_job_waits_for_its_begin_time() -> None:
    record = queued("requeued-00c0ffee")
    assert (record.state, record.restart, record.reason) == (JobState.PENDING, 1, "BeginTime")
    assert record.start == at("2026-11-29T19:28:24")


@pytest.mark.parametrize(
    ("name", "state", "code", "signal", "reason"),
    [
        ("done-11112222", JobState.COMPLETED, 0, 0, ""),
        ("bad-33334444", JobState.FAILED, 3, 0, "NonZeroExitCode"),
        ("sig-55556666", JobState.FAILED, 0, 11, "JobLaunchFailure"),
        # The folder of its log was missing; sacct calls it 0:53.
        ("nolog-77778888", JobState.FAILED, 0, 53, "JobLaunchFailure"),
        ("cancel-9999aaaa", JobState.CANCELLED, 0, 15, ""),
    ],
)
def test_how_a_job_ended(name: str, state: JobState, code: int, signal: int, reason: str) -> None:
    record = queued(name)
    assert (record.state, record.exit_code, record.signal) == (state, code, signal)
    assert record.reason == reason
    assert record.in_queue
    assert record.state.ended


def test_a_preempted_job_is_told_apart_from_a_failed_one() -> None:
    assert queued("precan-12345678", PREEMPTED).state is JobState.PREEMPTED
    states = {r.job_id: r.state for r in parse.squeue(PREEMPTED, names=frozenset({OURS}))}
    assert states == {"1": JobState.FAILED, "2": JobState.PENDING}


def test_array_and_heterogeneous_ids_are_text() -> None:
    text = row("57829110_[5-100]") + row("31+1") + row("28_[0-1,3-5%2]")
    records = parse.squeue(text, names=frozenset({OURS}))
    assert [r.job_id for r in records] == ["57829110_[5-100]", "31+1", "28_[0-1,3-5%2]"]


def row(job_id: str = "1", *cells: str) -> str:
    """Return a row of squeue with the first cells replaced."""
    plain = [*("1", "RUNNING", "0", "None", "2026-11-29T19:26:20", "N/A", "N/A"), "0", "spot", ""]
    values = [job_id, *cells, *plain[1 + len(cells) :], OURS]
    return "".join(f"{v:<20}|" for v in values) + "\n"


@pytest.mark.parametrize("word", ["COMPLETININVALID", "CANCELLED+", "alice", "", "?", "NEW_STATE"])
def test_a_state_we_do_not_know_is_unknown_and_no_end(word: str) -> None:
    (record,) = parse.squeue(row("1", word), names=frozenset({OURS}))
    assert record.state is JobState.UNKNOWN
    assert not record.state.ended


@pytest.mark.parametrize("word", list(JobState))
def test_every_state_of_slurm_reads(word: JobState) -> None:
    assert parse.state(word.value) is word
    assert parse.state(word.value.lower()) is word


def test_states_that_are_an_end() -> None:
    ended = {state.value for state in JobState if state.ended}
    words = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY"
    assert ended == set(words.split()) | {"PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"}


def test_an_unreadable_row_of_ours_is_an_error_and_not_an_absence() -> None:
    with pytest.raises(QueryError, match="cannot read this row"):
        parse.squeue(row("1", "RUNNING", "many"), names=frozenset({OURS}))


def test_an_unreadable_row_of_others_is_passed_over() -> None:
    assert parse.squeue(row("1", "RUNNING", "many"), names=frozenset({"other"})) == []


@pytest.mark.parametrize("text", ["", "\n", "|||\n", "x" * 1000, "\x00|\x00", "|" * 100])
def test_rubbish_is_no_record(text: str) -> None:
    assert parse.sacct(text, names=frozenset({OURS})) == []
    if text.strip() and text.count("|") < 10:
        with pytest.raises(QueryError):
            parse.squeue(text, names=frozenset({OURS, ""}))
    else:
        assert parse.squeue(text, names=frozenset({OURS, ""})) == []


@pytest.mark.parametrize(
    "text",
    [
        "N/A",
        "NONE",
        "None",
        "Unknown",
        "INVALID",
        "UNLIMITED",
        "NOT_SET",
        "",
        "0001-01-01T00:00:00",
    ],
)
def test_no_time_is_none_and_never_0(text: str) -> None:
    assert parse.time(text) is None


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The login node's clock is in New York."""
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_a_time_is_of_the_zone_of_the_login_node() -> None:
    assert parse.time("2026-01-31T10:00:00") == datetime(2026, 1, 31, 15, tzinfo=UTC).timestamp()
    assert parse.time("2026-07-31T10:00:00") == datetime(2026, 7, 31, 14, tzinfo=UTC).timestamp()


def test_accounting_knows_the_uid_of_who_cancelled() -> None:
    (record,) = accounted("cancel-9999aaaa")
    assert (record.state, record.reason) == (JobState.CANCELLED, "CANCELLED by 20001")
    assert not record.in_queue


def test_every_requeue_is_a_record_of_its_own() -> None:
    old, new = accounted("requeued-00c0ffee")
    assert (old.state, new.state) == (JobState.REQUEUED, JobState.PENDING)
    assert (new.nodes, new.start, new.restart) == ("", None, None)


def test_the_signal_of_a_job_whose_log_had_no_folder() -> None:
    (record,) = accounted("nolog-77778888")
    assert (record.exit_code, record.signal) == (0, 53)


def test_state_comes_before_exit_code() -> None:
    (record,) = accounted(OURS, f"5|OUT_OF_MEMORY|0:125|Unknown|Unknown|Unknown|p|n1|{OURS}\n")
    assert record.state is JobState.OUT_OF_MEMORY
    (record,) = accounted("precan-12345678")
    assert (record.state, record.exit_code) == (JobState.PREEMPTED, 0)


def test_a_recycled_id_of_another_name_is_passed_over() -> None:
    text = "12728301|COMPLETED|0:0|2017-10-03T10:00:00|2017-10-03T10:00:00|2017-10-04|p|n1|xxxx\n"
    assert accounted(OURS, text) == []


def test_accounting_survives_a_hostile_name() -> None:
    text = f"5|FAILED|1:0|Unknown|Unknown|Unknown|p|n1|{OURS}|COMPLETED\nx\n"
    assert accounted(OURS, text) == []
    (record,) = accounted(f"{OURS}|COMPLETED", text)
    assert record.state is JobState.FAILED


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("15786755\n", "15786755"),
        ("75168975;c1\n", "75168975"),
        ("sbatch: lua: your job 4 hours quota left\n\n777;nautilus\n", "777"),
    ],
)
def test_the_id_of_a_submission(text: str, job_id: str) -> None:
    assert parse.job_id(text) == job_id


@pytest.mark.parametrize("text", ["", "\n", "Submitted batch job 5", "error: 5", "5 6"])
def test_no_id_is_an_error_and_no_guess(text: str) -> None:
    with pytest.raises(ValueError, match="no job id"):
        parse.job_id(text)


@pytest.mark.parametrize("text", ["PENDING Resources\n", "\x1b[31mno\n", "slurm is down for today"])
def test_an_answer_of_another_kind_is_none(text: str) -> None:
    """Else every job would be gone."""
    with pytest.raises(QueryError, match="cannot read this row"):
        parse.squeue(text, names=frozenset({OURS}))
