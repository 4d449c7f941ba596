"""What is read from the files of an attempt: real reports of torchrun, and hostile ones."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.evidence import files, reading, reports, tracebacks
from orchestrator.judging.classify import Verdict, classify
from orchestrator.rundir.attempt import Finding, Weight
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import facts
from orchestrator.scheduler import JobState

from .builders import job, make_run

DATA = Path(__file__).parents[1] / "data" / "torchrun-2.13"


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return make_run(tmp_path / "llama")


def begin(run: RunLayout, number: int = 1, nodes: str = "n[1-2]") -> AttemptLayout:
    """Begin an attempt: its folders, its start, and its line in batch.log."""
    layout = run.attempt(number)
    for folder in (layout.errors, layout.logs, layout.nccl):
        folder.mkdir(parents=True)
    start = {"job_id": "7", "restart": number - 1, "nodes": nodes, "started_at": 1000}
    layout.start.write_text(json.dumps(start))
    say(run, f"2026-11-29 22:00:00 fsdpq: attempt {number}: job 7, restart 0, on {nodes}\n")
    return layout


def say(run: RunLayout, text: str) -> None:
    with run.output.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def stderr(layout: AttemptLayout, node: int, local: int, text: str | bytes) -> None:
    path = layout.logs / f"node-{node}" / "none_x" / "attempt_0" / str(local) / "stderr.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def error(layout: AttemptLayout, rank: int, exception: str, **changes: Any) -> None:
    data = {"rank": rank, "node": "n2", "step": 41, "exception": exception, "at": 5.0, **changes}
    (layout.errors / f"rank-{rank}.json").write_text(json.dumps(data))


def played(run: RunLayout, name: str, nodes: str = "n1") -> AttemptLayout:
    """An attempt that ended as a real one did."""
    layout = begin(run, nodes=nodes)
    say(run, (DATA / name / "batch.log").read_text(encoding="utf-8"))
    for path in (DATA / name).glob("rank-*.stderr"):
        stderr(layout, 0, int(path.stem[5:]), path.read_bytes())
    return layout


def findings(run: RunLayout, number: int = 1) -> tuple[Finding, ...]:
    (found,) = [a for a in facts.attempts(run) if a.number == number]
    return facts.ended(run, found).findings


def verdict(run: RunLayout, state: JobState = JobState.FAILED) -> Verdict:
    found = facts.latest(run)
    assert found is not None
    return classify(job(state=state), facts.ended(run, found))


# --- real ends --------------------------------------------------------------------------------


def test_a_worker_that_was_killed_is_named_and_not_its_survivors(run: RunLayout) -> None:
    layout = played(run, "kill")
    # A survivor of our runtime writes an error file.
    error(
        layout, 0, "VoteError: the ranks did not agree within 300 s, or one is gone: x", node="n1"
    )
    found = verdict(run)
    assert found.why == "rank 1 on n1 was ended by SIGKILL and left no error"
    assert (found.cause, found.node, found.suspects) == (Cause.WORKER_ERROR, "n1", ())
    assert "Nothing in the log says who did it" in found.advice
    told = facts.ended(run, facts.attempts(run)[0]).error
    assert told is not None
    assert (told.rank, told.exception) == (1, "was ended by SIGKILL and left no error")


def test_a_worker_that_the_kernel_killed(run: RunLayout) -> None:
    played(run, "kill")
    say(run, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks"
             " have been OOM Killed.\n")  # fmt: skip
    found = verdict(run)
    assert found.cause is Cause.OUT_OF_MEMORY
    assert found.why.startswith("rank 1 on n1 failed: the kernel killed 1 process")
    assert verdict(run, JobState.OUT_OF_MEMORY).why.startswith(
        "job 7 ended as OUT_OF_MEMORY: rank 1 on n1"
    )


@pytest.mark.parametrize(
    ("name", "cause", "why"),
    [
        ("raise", Cause.WORKER_ERROR, "rank 1 on n1 failed: ValueError: bad batch 17"),
        ("exit", Cause.WORKER_ERROR, "rank 1 on n1 ended with exit code 7 and left no error"),
        (
            "import",
            Cause.CONFIGURATION,
            "rank 1 on n1 failed: nowhere_module cannot be imported",
        ),
        ("syntax", Cause.CONFIGURATION, "rank 0 on n1 failed: SyntaxError: invalid syntax"),
    ],
)
def test_a_plain_script_is_named_too(run: RunLayout, name: str, cause: Cause, why: str) -> None:
    played(run, name)
    found = verdict(run)
    assert (found.cause, found.why) == (cause, why)


def test_an_import_that_worked_for_a_while_is_no_mistake_in_the_job(run: RunLayout) -> None:
    layout = played(run, "import")
    layout.progress.write_text('{"step": 12, "at": 2.0}')
    assert verdict(run).cause is Cause.WORKER_ERROR


# --- which of several -------------------------------------------------------------------------


def test_the_first_cause_over_all_ranks_and_not_the_first_line(run: RunLayout) -> None:
    layout = begin(run)
    error(layout, 0, "RuntimeError: Connection closed by peer", at=1.0, node="n1")
    error(layout, 9, "ValueError: late", at=9.0)
    error(layout, 5, "ValueError: bad batch", at=5.0)
    found = verdict(run)
    assert found.why == "rank 5 on n2 failed: ValueError: bad batch (after step 41)"


def test_a_broken_gpu_explains_everything_that_came_before_it_was_told(run: RunLayout) -> None:
    layout = begin(run)
    error(layout, 0, "VoteError: the ranks did not agree within 300 s", at=1.0, node="n1")
    error(layout, 9, "AcceleratorError: CUDA error: uncorrectable ECC error encountered", at=9.0)
    found = verdict(run)
    assert (found.cause, found.suspects, found.node) == (Cause.GPU_FAILURE, ("n2",), "n2")
    assert found.why.startswith("rank 9 on n2 failed: the GPU's memory is broken")


def test_a_port_that_went_down_explains_the_completion_errors_of_others(run: RunLayout) -> None:
    """lit-llama#380."""
    layout = begin(run, nodes="node-[48,51]")
    late = (
        "node-51:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from"
        " peer node-48<37948> with error 12, opcode 2, len 1, vendor err 129\n"
    )
    (layout.nccl / "node-51.73076.log").write_text(late)
    first = (
        "node-48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port"
        " error\n"
    )
    (layout.nccl / "node-48.34050.log").write_text(first)
    found = verdict(run)
    assert (found.cause, found.suspects) == (Cause.FABRIC, ("node-48",))
    assert found.why == "node-48: the InfiniBand adapter reports: port error"


def test_a_watchdog_is_a_hang_and_names_who_waited(run: RunLayout) -> None:
    layout = begin(run)
    line = (
        "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught"
        " collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9,"
        " NumelOut=9,"
        " Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    )
    stderr(layout, 0, 1, line)
    found = verdict(run)
    assert found.cause is Cause.HANG
    assert "rank 1 on n1" in found.why
    assert found.suspects == ()


def test_a_lost_node_is_named_and_survivors_are_not_blamed(run: RunLayout) -> None:
    layout = begin(run, nodes="jean-zay-iam[17,37]")
    error(layout, 0, "VoteError: one is gone: Connection closed by peer", node="jean-zay-iam17")
    say(run, "srun: error: Node failure on jean-zay-iam37\n"
             "slurmstepd: error: *** STEP 7.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51"
             " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n")  # fmt: skip
    for state in (JobState.FAILED, JobState.NODE_FAIL):
        found = verdict(run, state)
        assert (found.cause, found.suspects) == (Cause.NODE_FAILURE, ("jean-zay-iam37",))
        assert "jean-zay-iam37: Slurm lost the node" in found.why


def test_a_list_of_lost_nodes(run: RunLayout) -> None:
    begin(run, nodes="n[1-4]")
    say(run, "srun: error: Node failure on n[2-3]\n")
    assert verdict(run).suspects == ("n2", "n3")


def test_where_all_nodes_say_it_none_is_suspected(run: RunLayout) -> None:
    layout = begin(run)
    error(layout, 0, "RuntimeError: No CUDA GPUs are available", node="n1")
    error(layout, 1, "RuntimeError: No CUDA GPUs are available", node="n2.cluster.local")
    found = verdict(run)
    assert (found.cause, found.suspects) == (Cause.CONFIGURATION, ())
    (layout.errors / "rank-0.json").unlink()
    found = verdict(run)
    assert (found.cause, found.suspects) == (Cause.GPU_FAILURE, ("n2",))


def test_a_node_that_is_not_the_jobs_is_no_suspect(run: RunLayout) -> None:
    """sbatch refuses an exclude list with a name that it does not know."""
    layout = begin(run)
    error(layout, 0, "RuntimeError: No CUDA GPUs are available", node="somewhere-else")
    found = verdict(run)
    assert found.suspects == ()
    assert "somewhere-else" in found.why


def test_the_place_in_the_job_tells_the_node_where_its_name_does_not(run: RunLayout) -> None:
    layout = begin(run, nodes="gpu-[1-2]")
    trace = "Traceback (most recent call last):\n  File x\nRuntimeError: GPU is lost\n"
    for local in (0, 1):
        stderr(layout, 0, local, "")
    stderr(layout, 1, 0, trace)
    found = verdict(run)
    assert found.suspects == ("gpu-2",)
    assert found.why.startswith("rank 2 on gpu-2")


# --- checks before the start ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "what", "cause", "suspects"),
    [
        ("node", "2 uncorrectable ECC errors on GPU 3", Cause.NODE_CHECK, ("n2",)),
        ("storage", "/scratch: No space left on device", Cause.DISK_FULL, ()),
        ("storage", "/scratch is not there", Cause.NODE_CHECK, ()),
        ("job", "torch 2.4 is too old", Cause.CONFIGURATION, ()),
    ],
)
def test_checks_before_the_start(
    run: RunLayout, kind: str, what: str, cause: Cause, suspects: tuple[str, ...]
) -> None:
    layout = begin(run)
    layout.preflight.mkdir()
    problem = {"check": "x", "kind": kind, "what": what}
    bad = {"node": "n2", "ok": False, "at": 3.0, "problems": [problem]}
    (layout.preflight / "node-1.json").write_text(json.dumps(bad))
    (layout.preflight / "node-0.json").write_text('{"node": "n1", "ok": true, "problems": []}')
    (layout.root / "node-1.exit").write_text("76\n")
    found = verdict(run)
    assert (found.cause, found.suspects) == (cause, suspects)
    assert what in found.why
    assert [finding.kind for finding in findings(run)] == ["check-x"]  # said once


def test_a_node_that_did_not_pass_and_did_not_say_why(run: RunLayout) -> None:
    layout = begin(run)
    (layout.root / "node-0.exit").write_text("143\n")
    (layout.root / "node-1.exit").write_text("76\n")
    found = verdict(run)
    assert (found.cause, found.suspects) == (Cause.NODE_CHECK, ("n2",))


def test_files_named_by_node_rank_are_the_right_nodes(run: RunLayout) -> None:
    """Ranks may follow the network, and then node rank 1 is not Slurm's second node."""
    layout = begin(run, nodes="n[1,3,2,4]")
    (layout.root / "node-1.exit").write_text("76\n")
    stderr(layout, 2, 0, 'Traceback (most recent call last):\n  File "a"\nValueError: bad\n')
    assert verdict(run).suspects == ("n3",)
    told = [(f.rank, f.node) for f in findings(run) if f.kind == "exception"]
    assert told == [(2, "n2")]


def test_an_interpreter_that_is_not_there(run: RunLayout) -> None:
    layout = begin(run)
    (layout.root / "node-0.exit").write_text("127\n")
    say(run, "/runs/llama/node.sh: line 58: /envs/x/bin/python: No such file or directory\n")
    found = verdict(run)
    assert found.cause is Cause.CONFIGURATION
    assert "/envs/x/bin/python" in found.why


# --- batch.log is shared by all attempts -------------------------------------------------------

PREEMPTED = (
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T22:10:01 DUE TO PREEMPTION ***\n"
)
LIMIT = PREEMPTED.replace("PREEMPTION", "TIME LIMIT")


def test_each_attempt_has_its_own_part_of_the_log(run: RunLayout) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    begin(run, 2)
    say(run, "nothing\n")
    begin(run, 3)
    say(run, LIMIT)
    kinds = [[f.kind for f in findings(run, n)] for n in (1, 2, 3)]
    assert kinds == [["preempted"], [], ["time-limit"]]


def test_an_attempt_that_never_got_to_its_line_has_no_part(run: RunLayout) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    run.attempt(2).root.mkdir()
    assert findings(run, 2) == ()


def test_what_workers_print_is_never_slurms_word(run: RunLayout) -> None:
    begin(run)
    fakes = (
        "",
        "2026-11-29 22:00:00 fsdpq: attempt 2: job 7, restart 0, on n1",
        PREEMPTED.strip(),
        "srun: error: Node failure on n2",
        "Root Cause (first observed failure):",
    )
    for text in fakes:
        say(run, f"[default0]:{text}\r{text}\n")
    assert findings(run) == ()
    assert not any(files.batch_lines(run.output, 2))


@pytest.mark.parametrize("padding", [10, 5 << 20, 9 << 20])
def test_a_long_log_is_read_at_its_ends(run: RunLayout, padding: int) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    say(run, ("x" * 99 + "\n") * (padding // 100))
    begin(run, 2)
    say(run, LIMIT)
    say(run, ("y" * 99 + "\n") * (padding // 100))
    assert [f.kind for f in findings(run, 1)] == ["preempted"]
    assert [f.kind for f in findings(run, 2)] == ["time-limit"]
    assert sum(map(len, files.batch_lines(run.output, 2))) < 5 << 20


def test_a_mark_on_the_border_of_two_blocks_is_found(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(run, 1)
    say(run, PREEMPTED)
    begin(run, 2)
    say(run, LIMIT)
    for size in range(64, 320, 7):
        monkeypatch.setattr(files, "_BLOCK_BYTES", size)
        assert [f.kind for f in findings(run, 1)] == ["preempted"]
        assert [f.kind for f in findings(run, 2)] == ["time-limit"]


# --- hostile files ----------------------------------------------------------------------------


def test_files_of_any_size_and_bytes(run: RunLayout) -> None:
    layout = begin(run)
    noise = bytes(range(256)) * 4096
    stderr(layout, 0, 0, noise)
    stderr(layout, 0, 1, "Traceback (most recent call last):\n" * 5000)
    for path in (layout.nccl / "n1.1.log", run.output, layout.errors / "rank-0.json"):
        with path.open("ab") as file:
            file.write(noise)
            file.truncate(1 << 30)
    for path in (layout.errors / "rank-1.json", layout.root / "node-0.exit"):
        path.write_bytes(noise)
    os.mkfifo(layout.nccl / "n1.2.log")
    os.mkfifo(layout.errors / "rank-7.json")
    layout.preflight.mkdir()
    for number, text in enumerate(("[]", "{", '{"ok": false, "problems": 7}', "[" * 100_000)):
        (layout.preflight / f"node-{number}.json").write_text(text)
    assert reading.read(layout, run.output, number=1, nodes="n[1-2]") == ()


def test_thousands_of_ranks_are_read_in_bounds(run: RunLayout) -> None:
    nodes, per_node = 60, 20
    layout = begin(run, nodes=f"n[1-{nodes}]")
    for rank in range(nodes * per_node):
        stderr(layout, rank // per_node, rank % per_node, "")
        (layout.nccl / f"n{rank // per_node + 1}.{rank}.log").touch()
        error(layout, rank, "RuntimeError: Connection closed by peer", at=float(rank))
    trace = "Traceback (most recent call last):\n  File x\nValueError: the one\n"
    stderr(layout, 51, 3, trace)
    rank = 51 * per_node + 3
    say(run, "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_22:08:06\n"
             f"  host      : n52\n  rank      : {rank} (local_rank: 3)\n"
             "  exitcode  : 1 (pid: 5)\n")  # fmt: skip
    found = verdict(run)
    assert found.why == f"rank {rank} on n52 failed: ValueError: the one"


# --- tracebacks -------------------------------------------------------------------------------

TRACE = "Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\n    f()\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("all is well\n", []),
        (TRACE + "ValueError: bad\n", ["ValueError: bad"]),
        (TRACE + "a.b.MyError\n", ["a.b.MyError"]),
        (TRACE + "KeyboardInterrupt\n", ["KeyboardInterrupt"]),
        (
            "[rank3]: " + TRACE.replace("\n", "\n[rank3]: ") + "ValueError: bad\n",
            ["ValueError: bad"],
        ),
        (TRACE + "ValueError: one\ntwo\n\nthree\n", ["ValueError: one\ntwo"]),
        # One that was survived, long ago.
        (TRACE + "ValueError: old\n" + "step 7\n" * 100, []),
        (TRACE + "ValueError: old\n" + "step 7\n" * 100 + TRACE + "KeyError: 1\n", ["KeyError: 1"]),
        (TRACE + "ValueError: bad\n" + "frame #1: x (0x7f)\n" * 100, ["ValueError: bad"]),
        (
            TRACE
            + "OSError: [Errno 28] No space\n\nThe above exception was the direct cause of the"
            + " following exception:\n\n"
            + TRACE
            + "RuntimeError: save failed\n",
            ["RuntimeError: save failed", "OSError: [Errno 28] No space"],
        ),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n"
            "  what():  [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: an"
            " illegal memory access was encountered\n",
            [
                "RuntimeError: [Rank 3] NCCL watchdog thread terminated with exception: CUDA error:"
                " an illegal memory access was encountered"
            ],
        ),
        (
            "  File 'x.py', line 1\n    def f(:\n          ^\nSyntaxError: bad\n",
            ["SyntaxError: bad"],
        ),
        # Cut off in the middle.
        (TRACE, []),
        ("    f()\nValueError: the head of it was cut off\n", []),
        (TRACE + "not an exception at all\n", []),
    ],
)
def test_tracebacks(text: str, found: list[str]) -> None:
    assert tracebacks.last(text) == found


def test_the_cause_of_an_exception_counts(run: RunLayout) -> None:
    layout = begin(run)
    trace = (
        TRACE
        + "OSError: [Errno 28] No space left on device\n\nDuring handling of the above exception,"
        + " another exception occurred:\n\n"
        + TRACE
        + "RuntimeError: save failed\n"
    )
    error(layout, 3, "RuntimeError: save failed", traceback=trace)
    assert verdict(run).cause is Cause.DISK_FULL


def test_what_a_killed_rank_survived_before_is_not_its_end(run: RunLayout) -> None:
    layout = played(run, "kill")
    stderr(layout, 0, 1, TRACE + "ValueError: survived\n")
    assert "SIGKILL" in verdict(run).why


def test_words_that_a_program_prints_are_not_its_end(run: RunLayout) -> None:
    layout = begin(run)
    stderr(layout, 0, 0, "prompt: CUDA out of memory. Tried to allocate 2 GiB\n")
    found = verdict(run)
    assert found.cause is Cause.WORKER_ERROR
    assert "no rank left an error" in found.why


# --- torchrun's reports -----------------------------------------------------------------------


def test_reports_of_several_nodes() -> None:
    lines = (DATA / "kill" / "batch.log").read_text(encoding="utf-8").split("\n")
    (one,) = reports.exits(lines)
    assert (one.rank, one.local_rank, one.host, one.code) == (1, 1, "localhost", -9)
    assert (one.signal, one.killed) == ("SIGKILL", True)
    assert reports.exits(lines + lines) == [one, one]


@pytest.mark.parametrize(
    "text",
    [
        "Root Cause (first observed failure):",
        "Root Cause (first observed failure):\n[0]:\n  rank      : x (local_rank: 1)\n  exitcode:",
        "Root Cause (first observed failure):\n" + "noise\n" * 50 + "  exitcode  : 1 (pid: 1)",
    ],
)
def test_reports_that_are_cut_off(text: str) -> None:
    assert reports.exits(text.split("\n")) == []


@pytest.mark.parametrize(
    ("code", "signal", "weight"),
    [
        (-9, "SIGKILL", Weight.OWN),
        (-11, "SIGSEGV", Weight.OWN),
        (-7, "SIGBUS", Weight.OWN),
        (-6, "SIGABRT", Weight.MAYBE),
        (-15, "signal 15", Weight.ECHO),
        (-64, "signal 64", Weight.OWN),
        (1, "", Weight.MAYBE),
        (3, "", Weight.MAYBE),
    ],
)
def test_exit_codes_and_signals_survive(code: int, signal: str, weight: Weight) -> None:
    ended = reports.RankExit(3, 1, "n2", code, 5.0)
    found = reports.finding(ended, node="n2")
    assert found.weight is weight
    assert (signal or f"exit code {code}") in found.what


def test_a_time_in_whole_seconds_does_not_come_before_an_error_file_of_that_second(
    run: RunLayout,
) -> None:
    """torchrun saw rank 0 end at 22:08:06; rank 3 had failed at 22:08:06.4, and that was why."""
    layout = begin(run)
    second = datetime(2026, 11, 29, 22, 8, 6).timestamp()
    trace = "Traceback (most recent call last):\n  File x\nEOFError\n"
    error(layout, 3, "ArithmeticError: the one", at=second + 0.4)
    for written in (False, True):  # without an error file of its own, and with one
        if written:
            error(layout, 0, "EOFError", at=second + 0.6)
        stderr(layout, 0, 0, trace)
        say(run, "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_22:08:06\n"
                 "  host      : n1\n  rank      : 0 (local_rank: 0)\n"
                 "  exitcode  : 1 (pid: 5)\n")  # fmt: skip
        assert verdict(run).why.startswith("rank 3 on ")


@pytest.mark.parametrize("name", ["slurmstepd", "slurmstepd-n1"])
def test_slurmstepd_may_give_its_nodes_name(run: RunLayout, name: str) -> None:
    """It does where slurmd was started with -N, as on clusters of several slurmd on a host."""
    begin(run)
    say(
        run,
        f"{name}: error: *** JOB 2 ON n1 CANCELLED AT 2026-11-29T23:58:46 DUE TO PREEMPTION ***\n",
    )
    assert verdict(run).cause is Cause.PREEMPTED
