"""Where the evidence of a diagnosis stands: file and line, and who was at the other end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.fabric.reading import number_of

from .builders import make_run
from .test_diagnose import GOOD, OFI, SOCKET, attempt, invoke, told

EIGHT = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(8))
USING = "{0}:7:7 [0] NCCL INFO NET/IB : Using {1} [RO]; OOB eth0:10.0.0.{2}<0>"
TRACE = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: bad batch"]


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["step 1 loss 2.0", *lines]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "kind", "number"),
    [
        ([line.format("n1") for line in SOCKET], "no_ib_device", 2),
        (
            [
                "n1:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
                SOCKET[1].format("n1"),
            ],
            *("ib_disabled", 2),
        ),
        ([line.format("tcp") for line in OFI], "other_provider", 2),
        (
            [
                USING.format("n1", EIGHT, 1),
                GOOD.decode().strip().removesuffix("/GDRDMA"),
            ],
            *("gdr_distance", 3),
        ),
        (
            [
                USING.format("n1", EIGHT, 1),
                USING.format("n2", EIGHT[: EIGHT.rindex(" ")], 2),
                GOOD.decode().strip(),
            ],
            *("fewer_hcas", 3),
        ),
        (
            [
                USING.format("n1", "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE", 1),
                GOOD.decode().strip(),
            ],
            *("mixed_link_layers", 2),
        ),
    ],
)
def test_a_reason_says_where_it_stands(
    lines: Sequence[str], kind: str, number: int, tmp_path: Path
) -> None:
    log = write(tmp_path / "job.log", *lines)
    cause = told(log)["cause"]
    assert (cause["kind"], cause["file"], cause["line_number"]) == (kind, log, number)
    assert cause["line"] == lines[number - 2]
    assert f"  {log}:{number}: {cause['line']}\n" in invoke("diagnose", log)[1]


def test_a_reason_that_an_error_explains(tmp_path: Path) -> None:
    warn = "n1:7:7 [0] NCCL WARN Failed to initialize any NET plugin"
    log = write(tmp_path / "job.log", *(line.format("n1") for line in SOCKET), warn)
    reason = told(log)["fabric_cause"]
    assert (reason["kind"], reason["file"], reason["line_number"]) == ("no_net_plugin", log, 4)


def test_an_exception_at_the_end_of_a_large_log(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    filler = "step 1 loss 2.0\n" * (5 << 16)
    lines = [f"[rank{rank}]: {line}" for rank in (3, 4) for line in TRACE]
    log.write_text(filler + "\n".join(lines) + "\nslurmstepd: error: Detected 1 oom_kill event.\n")
    found = told(log)
    count = 5 << 16
    assert (found["cause"]["kind"], found["cause"]["line_number"]) == ("oom-kill", count + 7)
    places = {other["rank"]: other["line_number"] for other in found["others"]}
    assert places == {3: count + 3, 4: count + 6}
    assert f"rank 3: ValueError: bad batch ({log}:{count + 3})" in invoke("diagnose", log)[1]


def test_the_evidence_of_a_run_has_its_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama")
    attempt(run, "n1", "n2")
    files = run.attempt(1)
    error = {"rank": 3, "node": "n2", "step": 4, "exception": "ValueError: bad batch", "at": 9.0}
    (files.errors / "rank-3.json").write_text(json.dumps(error))
    log = files.logs / "node-0" / "x" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("a\nb\n" + "\n".join([*TRACE[:2], "KeyError: 'x'"]) + "\n")
    batch = "2026-11-30 10:00:00 fsdpq: attempt 1: job 7, restart 0, on n1\n"
    run.output.write_text(f"{batch}srun: error: n1: task 0: Out Of Memory\n")
    found = told("llama", "--runs", tmp_path)
    places = {
        clue["kind"]: (clue["file"], clue["line_number"])
        for clue in [found["cause"], *found["others"]]
    }
    assert places["oom-kill"] == (str(run.output), 2)
    shown = invoke("diagnose", "llama", "--runs", tmp_path)[1]
    assert f"({files.errors / 'rank-3.json'})" in shown
    assert f"({log}:5)" in shown


def test_a_line_that_stands_there_twice_has_no_number(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\nb\nc\nb\n")
    assert number_of(tmp_path / "x", "c", most=100) == 3
    assert number_of(tmp_path / "x", "b", most=100) == 0
    assert number_of(tmp_path / "x", "c", most=7) == 0
    assert number_of(tmp_path / "gone", "c", most=100) == 0


# --- the other end of a connection ------------------------------------------------------------

GONE = "[rank0]: socketProgressOpt: Call to recv from {}<33759> failed : Connection reset by peer"
FIRST = "[rank0]: ncclRemoteError: A call failed possibly due to a network error"


def addresses(host: str, last: int) -> list[str]:
    return [
        f"{host}:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{last}<0>",
        f"{host}:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{last}<0>"
        " [1]virbr0:192.168.1.1<0>",
        f"{host}:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.9.0.{last}<0>",
    ]


def cause_of(tmp_path: Path, peer: str) -> dict[str, Any]:
    log = write(
        tmp_path / "job.log", *addresses("n1", 1), *addresses("n2", 2), FIRST, GONE.format(peer)
    )
    cause: dict[str, Any] = told(log)["cause"]
    return cause


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.2", "n2"),
        ("10.9.0.1", "n1"),
        ("n2.cluster.local", "n2"),
        ("192.168.1.1", None),  # both have it
        ("10.0.0.3", None),
        ("n3", None),
    ],
)
def test_the_node_at_the_other_end_is_named(tmp_path: Path, peer: str, host: str | None) -> None:
    cause = cause_of(tmp_path, peer)
    assert (cause["kind"], cause["peer"]) == ("remote_exit", f"{peer}<33759>")
    assert cause["peer_host"] == host
    name = f"{host} ({peer}<33759>)" if host else f"{peer}<33759>"
    assert f"the connection to {name} is gone" in cause["what"]


def test_without_an_address_the_other_end_is_not_named(tmp_path: Path) -> None:
    cause = told(write(tmp_path / "job.log", FIRST))["cause"]
    assert (cause["kind"], cause["peer"], cause["peer_host"]) == ("remote_exit", None, None)
