"""Why an attempt ended, from its files: real reports of torchrun, several errors, failed checks."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts
from orchestrator.scheduler import JobState

from .attempts import begin, error, findings, played, say, stderr, verdict

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
