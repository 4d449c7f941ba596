"""`fsdpq diagnose` on runs, files and folders; reading of large and odd files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.fabric.collect import Collector
from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.exceptions import endings
from orchestrator.fabric.lines import read
from orchestrator.fabric.network import Process
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.reading import BLOCK_BYTES, stream
from orchestrator.fabric.shares import COSTS, Budget
from orchestrator.fabric.sources import nccl_logs, of_paths
from orchestrator.rundir.layout import RunLayout

from .builders import SITE, make_run

IB_SITE = {**SITE, "name": "ib", "fabric": {"kind": "infiniband", "hcas_per_node": 8}}
SOCKET = [
    "{0}:7:7 [0] NCCL INFO NET/IB : No device found.",
    "{0}:7:7 [0] NCCL INFO Using network Socket",
]


def invoke(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(word) for word in args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def told(*args: object) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(invoke("diagnose", *args, "--json")[1])
    return data


def attempt(run: RunLayout, *hosts: str, number: int = 1) -> None:
    files = run.attempt(number)
    for folder in (files.errors, files.logs, files.nccl):
        folder.mkdir(parents=True)
    start = {"job_id": "7", "restart": 0, "nodes": ",".join(hosts), "started_at": 1000}
    files.start.write_text(json.dumps(start))
    for host in hosts:
        text = "\n".join(SOCKET).format(host) + "\n"
        (files.nccl / f"{host}.7.log").write_text(text)


OFI = [
    "n1:7:7 [0] NCCL INFO NET/OFI Selected provider is {}, fabric is x (found 4 nics)",
    "n1:7:7 [0] NCCL INFO Using network AWS Libfabric",
]


@pytest.mark.parametrize(
    ("provider", "site", "verdict"),
    [
        ("efa", "aws-p5", "ok"),
        ("tcp", "aws-p5", "socket_fallback"),
        ("tcp;ofi_rxm", "aws-p5", "socket_fallback"),
        ("sockets", "cscs-clariden", "socket_fallback"),
        ("efa", "cscs-clariden", "degraded"),
        ("cxi", "cscs-clariden", "ok"),
    ],
)
def test_the_provider_of_libfabric_counts(
    tmp_path: Path, provider: str, site: str, verdict: str
) -> None:
    """The network has the same name whether it is the fast one or TCP."""
    log = tmp_path / "n1.7.log"
    log.write_text("\n".join(OFI).format(provider) + "\n")
    found = told(log, "--site", site)
    assert (found["verdict"], found["provider"]) == (verdict, provider.partition(";")[0])
    if verdict != "ok":
        assert found["cause"]["kind"] == "other_provider"
        assert "Selected provider" in found["cause"]["line"]


# --- runs -------------------------------------------------------------------------------------


def test_a_run_is_judged_by_its_own_site(tmp_path: Path) -> None:
    promise = Promise(kind="infiniband", hcas=8, site="ib")
    attempt(make_run(tmp_path / "llama", fabric=promise), "n1", "n2")
    found = told("llama", "--runs", tmp_path)
    assert (found["verdict"], found["expected"]["site"]) == ("socket_fallback", "ib")
    assert [host["host"] for host in found["hosts"]] == ["n1", "n2"]
    code, text = invoke("diagnose", "llama", "--runs", tmp_path)
    assert code == 0
    assert "over sockets (TCP), and ib has infiniband" in text


def test_a_run_on_ethernet_is_as_it_should_be(tmp_path: Path) -> None:
    attempt(make_run(tmp_path / "llama"), "n1", "n2")
    assert told("llama", "--runs", tmp_path)["verdict"] == "ok"


def test_site_says_otherwise(tmp_path: Path) -> None:
    attempt(make_run(tmp_path / "llama"), "n1", "n2")
    profile = tmp_path / "ib.yaml"
    profile.write_text(yaml.safe_dump(IB_SITE))
    found = told("llama", "--runs", tmp_path, "--site", profile)
    assert found["verdict"] == "socket_fallback"


def test_the_root_cause_of_an_attempt_is_that_of_its_evidence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama")
    attempt(run, "n1", "n2")
    error = {"rank": 3, "node": "n2", "step": 4, "exception": "ValueError: bad batch", "at": 9.0}
    (run.attempt(1).errors / "rank-3.json").write_text(json.dumps(error))
    warn = "n1:7:7 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<1>\n"
    with (run.attempt(1).nccl / "n1.7.log").open("a") as file:
        file.write(warn)
    found = told("llama", "--runs", tmp_path)
    cause = found["cause"]
    assert (found["verdict"], cause["rank"], cause["host"]) == ("failed", 3, "n2")
    assert cause["line"] == "ValueError: bad batch"
    assert [other["kind"] for other in found["others"]] == ["peer_closed"]
    # One that ended well did not fail, whatever NCCL said when its peers went.
    run.attempt(1).status.write_text('{"outcome": "stopped"}')
    assert told("llama", "--runs", tmp_path)["verdict"] == "ok"


def test_each_attempt_has_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "llama", fabric=Promise(kind="infiniband"))
    attempt(run, "n1", "n2")
    attempt(run, "n1", number=2)
    assert told("llama", "--runs", tmp_path)["verdict"] == "ok"  # of one node
    assert told("llama", "--runs", tmp_path, "--attempt", 1)["verdict"] == "socket_fallback"
    code, text = invoke("diagnose", "llama", "--runs", tmp_path, "--attempt", 3)
    assert (code, "there is no attempt 3" in text) == (1, True)


def test_a_run_without_an_attempt(tmp_path: Path) -> None:
    make_run(tmp_path / "llama")
    code, text = invoke("diagnose", "llama", "--runs", tmp_path)
    assert (code, "no attempt has started yet" in text) == (1, True)


# --- files ------------------------------------------------------------------------------------


def test_a_folder_of_logs(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        (tmp_path / f"{host}.7.log").write_text("\n".join(SOCKET).format(host))
    (tmp_path / "model.safetensors").write_bytes(b"NCCL WARN " * 100)
    found = told(tmp_path)
    assert (found["verdict"], len(found["hosts"])) == ("socket_fallback", 2)
    assert told(tmp_path / "n1.7.log", tmp_path / "n2.7.log") == found


def test_files_that_say_nothing_are_no_success(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("step 1 loss 2.0\n")
    code, text = invoke("diagnose", path)
    assert (code, text.split(":")[0]) == (1, "unknown")
    assert told(path)["verdict"] == "unknown"


@pytest.mark.parametrize("args", [("nowhere",), ("nowhere.log", "elsewhere.log")])
def test_what_is_not_there(args: tuple[str, ...], tmp_path: Path) -> None:
    code, text = invoke("diagnose", *args, "--runs", tmp_path)
    assert code == 1
    assert "there is no" in text
    assert "nowhere" in text


def test_attempt_goes_with_a_run(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("x\n")
    assert invoke("diagnose", path, "--attempt", 1)[0] == 2


def test_an_exception_of_one_rank_among_many(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: bad batch"]
    lines = [f"[rank3]: {line}" for line in trace]
    other = ["[rank1]: Traceback (most recent call last):", "[rank1]:   x"]
    other += ["[rank1]: RuntimeError: Connection closed by peer"]
    mixed = [line for pair in zip(lines, other, strict=True) for line in pair]
    path.write_text("\n".join(mixed) + "\n")
    found = told(path)
    assert (found["verdict"], found["cause"]["rank"]) == ("failed", 3)
    assert found["cause"]["line"] == "ValueError: bad batch"
    assert found["others"][0]["rank"] == 1


def test_the_word_of_slurm_in_a_batch_log(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    assert told(path)["cause"]["kind"] == "oom-kill"


# --- reading ----------------------------------------------------------------------------------


def taken(path: Path, data: bytes) -> list[tuple[str, int, bool]]:
    path.write_bytes(data)
    found: list[tuple[str, int, bool]] = []
    stream(path, lambda text, number, whole: found.append((text, number, whole)))
    return found


LINE = b"n1:7:7 [0] NCCL WARN something\n"


def test_lines_are_numbered_over_blocks(tmp_path: Path) -> None:
    filler = b"step 1 loss 2.0\n" * (BLOCK_BYTES // 8)
    found = taken(tmp_path / "x", filler + LINE + filler + LINE)
    lines = filler.count(b"\n")
    assert found == [(LINE.decode()[:-1], n, True) for n in (lines + 1, 2 * lines + 2)]


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_a_line_over_the_edge_of_a_block(shift: int, tmp_path: Path) -> None:
    filler = b"x" * (BLOCK_BYTES - shift - 1) + b"\n"
    assert [text for text, *_ in taken(tmp_path / "x", filler + LINE)] == [LINE.decode()[:-1]]


def test_a_line_without_an_end_is_looked_at_in_pieces(tmp_path: Path) -> None:
    bar = b"\r 45%|####" * (BLOCK_BYTES // 4)
    found = taken(tmp_path / "x", bar + b"\r" + LINE + bar + b"NCCL WARN at its end")
    assert LINE.decode()[:-1] in [text for text, *_ in found]
    assert found[-1][0].endswith("NCCL WARN at its end")
    assert found[-1][2] is False


def test_what_is_of_no_interest_is_passed_over(tmp_path: Path) -> None:
    lines = (
        b"n1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
        b"n1:7:7 [0] NCCL INFO Connected NVLS tree\n",
        b"n1:7:7 [0] NCCL TRACE something else\n",
        b"\x00" * 100_000 + b"\n",
    )
    assert taken(tmp_path / "x", b"".join(lines)) == []


GOOD = b"n1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
CHATTY = {
    "good": GOOD,
    "plain": GOOD.replace(b"/GDRDMA", b""),
    "info": b"n1:7:7 [0] NCCL INFO Using network IB\n",
    "env": b"n1:7:7 [0] NCCL INFO NCCL_DEBUG set by environment to INFO\n",
    "trace": b"n1:7:7 [0] NCCL TRACE GPU Direct RDMA Enabled\n",
    "warn": LINE,
    "other": b"NCCL\n",
}


@pytest.mark.parametrize("sort", CHATTY)
def test_a_log_with_nothing_else_is_looked_into_for_what_its_bytes_pay(
    sort: str, tmp_path: Path
) -> None:
    data = CHATTY[sort] * (4 * BLOCK_BYTES // len(CHATTY[sort]))
    found = taken(tmp_path / "x", data)
    assert len(found) >= 500
    assert len(found) * COSTS[sort] <= 60_000 + 4 * 50_000


def test_of_too_many_lines_the_new_ones_are_heard(tmp_path: Path) -> None:
    """And lines of other sorts, wherever they stand."""
    warn = b"n1:7:7 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.%d with status=5\n"
    spam = b"".join(warn % n for n in range(10_000))
    rare = b"n2:9:9 [0] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    found = taken(tmp_path / "x", spam + rare + CHATTY["plain"] + spam + GOOD * 50_000)
    texts = [text for text, *_ in found]
    assert len(texts) < 20_000
    assert rare.decode()[:-1] in texts
    assert CHATTY["plain"].decode()[:-1] in texts


def test_files_of_a_diagnosis_have_one_budget_together(tmp_path: Path) -> None:
    budget, found = Budget(), []
    (tmp_path / "x").write_bytes(LINE * 10_000)
    for _ in range(50):
        stream(tmp_path / "x", lambda text, number, whole: found.append(text), budget=budget)
    size = 50 * len(LINE) * 10_000
    assert len(found) * COSTS["warn"] <= 60_000 + 50_000 * size / (1 << 20)


def test_what_a_long_log_did_not_need_is_there_at_its_end(tmp_path: Path) -> None:
    found = taken(tmp_path / "x", b"step 1 loss 2.0\n" * (1 << 20) + LINE * 10_000)
    assert len(found) == 10_000


def test_the_same_is_heard_only_so_often_in_one_file(tmp_path: Path) -> None:
    filler = b"step 1 loss 2.0\n" * (2 << 20)
    found = taken(tmp_path / "x", filler + LINE * 30_000 + CHATTY["plain"])
    assert len(found) == 20_001


def test_a_line_of_very_many_writers_is_read_in_part(tmp_path: Path) -> None:
    line = "n1:7:7 [0] NCCL WARN x" * 300
    assert len(list(read(line))) == 16


def test_the_end_of_a_log_is_bounded_too() -> None:
    """The last words of a job of very many tasks; one that says something else is heard."""
    ooms = [f"srun: error: n{n}: task {n}: Out Of Memory" for n in range(15_000)]
    ooms.insert(7_000, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***")
    found = list(endings("\n".join(ooms)))
    assert len(found) <= 300
    assert "time-limit" in {ending.finding.kind for ending in found}


def test_the_processes_are_put_together_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    once = Collector.processes

    def counted(self: Collector) -> list[Process]:
        asked.append("x")
        return once(self)

    monkeypatch.setattr(Collector, "processes", counted)
    (tmp_path / "job.log").write_text("\n".join(SOCKET).format("n1"))
    assert told(tmp_path / "job.log")["verdict"] == "socket_fallback"
    assert asked == ["x"]


def test_all_hosts_are_read_before_second_files_of_one(tmp_path: Path) -> None:
    for name in ("a.1.log", "a.2.log", "a.3.log", "b.9.log"):
        (tmp_path / name).write_text("x")
    assert [s.path.name for s in nccl_logs(tmp_path)][:2] == ["a.1.log", "b.9.log"]


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(SOCKET[1].format("n1") + "\n")
    sources = of_paths([tmp_path / "a.log"]).sources
    gone = of_paths([tmp_path]).sources[0]
    lost = type(gone)(path=tmp_path / "gone.log")
    assert examine([lost, *sources], None, more=ends([lost])).network == "Socket"


def test_logs_that_say_nothing_of_the_network(tmp_path: Path) -> None:
    """Such as those of ranks that use gloo."""
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    code, text = invoke("diagnose", tmp_path / "train.log")
    assert code == 1
    assert "ranks on gloo write none; else run with NCCL_DEBUG=INFO" in text


def test_a_log_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """It is read as far as it went when it was opened."""
    log = tmp_path / "n1.7.log"
    line = "n1:7:7 [0] NCCL INFO Using network IB\n"
    log.write_text(line)
    lines: list[str] = []

    def take(text: str, number: int, whole: bool) -> None:
        lines.append(text)
        with log.open("a") as file:
            file.write(line)

    assert stream(log, take) == len(line)
    assert len(lines) == 1


def test_many_processes_of_one_id(tmp_path: Path) -> None:
    """In containers each rank may have the same one."""
    log = tmp_path / "job.log"
    hosts = 3000
    log.write_text("".join(f"n{n}:7:7 [0] NCCL INFO Using network IB\n" for n in range(hosts)))
    assert len(told(log)["hosts"]) == hosts
