"""The monitor as a process: what it writes, what ends it, and what does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.clouds import Fixed, Google, Imds, ScheduledEvents, Served, Service, serve

from . import polling

pytestmark = pytest.mark.processes
until = partial(polling.until, within_s=30)
ROOT = Path(__file__).parents[2]
# -S: without the folder of installed packages. The monitor needs nothing from there.
MONITOR = [sys.executable, "-S", "-m", "orchestrator.monitor"]
Start = Callable[[Service], Served]
Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serving() -> Iterator[Start]:
    """Start stand-ins; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda service: stack.enter_context(serve(service))


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "FSDPQ_LOCAL_DIR": str(folder),
        "FSDPQ_ATTEMPT_DIR": str(folder / "attempt"),
        "FSDPQ_NOTICE_FILE": str(folder / "notice"),
        "FSDPQ_NODE": "1",
        **more,
    }


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start monitors; kill them at the end."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "attempt").mkdir()

    def begin(argv: list[str] = MONITOR, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            env=environment(tmp_path, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    """End a monitor as node.sh does and return what it said."""
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert process.returncode == 0
    return said


def aws() -> Service:
    imds = Imds()
    imds.interrupt("terminate")
    return imds


def azure() -> Service:
    service = ScheduledEvents()
    service.schedule("Preempt")
    return service


@pytest.mark.parametrize(
    ("cloud", "service", "word"),
    [
        ("aws", aws(), "AWS-SPOT"),
        ("azure", azure(), "AZURE-PREEMPT"),
        ("gcp", Google(preempted="TRUE"), "GCP-PREEMPT"),
    ],
)
def test_a_reclaim_becomes_a_notice(
    tmp_path: Path, serving: Start, run: Run, cloud: str, service: Service, word: str
) -> None:
    proxy = serving(Fixed())
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"), proxy.url)
    process = run(FSDPQ_CLOUD=cloud, FSDPQ_METADATA_URL=serving(service).url, **proxies)
    reclaim = tmp_path / "attempt/reclaims/node-1.json"
    until(reclaim.exists, "no notice came")
    for note in (tmp_path / "notice", tmp_path / "attempt/notice.1"):
        name, at = note.read_text().split()
        assert name == word
        assert abs(int(at) - time.time()) < 60
    said = ended(process)
    assert said.startswith("fsdpq: node 1: monitor: ")
    assert said.count("\n") == 1
    assert proxy.asked == []


def test_no_signal_of_a_notice_ends_it(tmp_path: Path, serving: Start, run: Run) -> None:
    google = Google()
    served = serving(google)
    process = run(FSDPQ_CLOUD="gcp", FSDPQ_METADATA_URL=served.url)
    until(lambda: served.asked, "it asks nothing")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        process.send_signal(number)
    google.preempted = "TRUE"
    until((tmp_path / "notice").exists, "it does not listen any more")
    ended(process)


def test_an_address_where_nobody_is_costs_a_line(tmp_path: Path, run: Run, serving: Start) -> None:
    with serve(Google()) as gone:
        pass
    process = run(FSDPQ_CLOUD="gcp", FSDPQ_METADATA_URL=gone.url)
    assert process.stderr is not None
    lines = sorted(process.stderr.readline() for _ in range(2))
    assert ["GcpMaintenance: MetadataError" in lines[0], "refused" in lines[1]] == [True, True]
    assert ended(process) == ""
    assert not (tmp_path / "notice").exists()


def test_it_ends_at_once_while_a_question_is_open(run: Run, serving: Start) -> None:
    import threading

    never = threading.Event()
    served = serving(ScheduledEvents(enabled=never))
    process = run(FSDPQ_CLOUD="azure", FSDPQ_METADATA_URL=served.url)
    until(lambda: len(served.asked) == 2, "it asks nothing")
    ended(process)
    never.set()


def test_it_ends_with_its_parent(tmp_path: Path, run: Run) -> None:
    """Also where the kernel does not see to that: nothing is tied here."""
    parent = run(["bash", "-c", '"$@" & echo $!; wait', "bash", *MONITOR])
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until(lambda: b"orchestrator.monitor" in command_line(child), "it does not start")
    until(lambda: is_ignored(child, signal.SIGUSR2), "it does not get ready")
    parent.kill()
    until(lambda: command_line(child) == b"", "it outlives its parent")


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_ignored(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_without_its_environment_it_says_so_in_a_line(run: Run) -> None:
    process = run(FSDPQ_NOTICE_FILE="")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said == (
        "fsdpq: node 1: monitor: FSDPQ_NOTICE_FILE is not set; node.sh of a run starts this,"
        " nobody else\n"
    )
