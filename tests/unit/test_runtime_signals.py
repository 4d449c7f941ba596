"""Signals and ends of real processes. None of them imports torch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import os, signal, sys, threading, time
from orchestrator import runtime
run = runtime.attach()
assert "torch" not in sys.modules
def wait():
    deadline = time.monotonic() + 20
    while run.noticed() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return run.noticed()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker whose code follows HEAD; kill it at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *, head: str = HEAD, **variables: str) -> subprocess.Popen[str]:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "FSDPQ_RUN_DIR": str(tmp_path),
            "FSDPQ_ATTEMPT": "1",
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", head + code],
            env=env,
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


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_user_signal_is_a_notice(start: Start) -> None:
    process = start('print("ready", flush=True); print(wait())')
    ready(process)
    process.send_signal(signal.SIGUSR2)
    out, _ = process.communicate(timeout=30)
    assert "signal='USR2'" in out
    assert process.returncode == 0


def test_term_from_a_plain_parent_is_a_notice(start: Start) -> None:
    process = start('print("ready", flush=True); print(wait())')
    ready(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert "signal='TERM'" in out
    assert process.returncode == 0


def test_term_from_torchrun_ends_the_worker(start: Start) -> None:
    process = start('print("ready", flush=True); time.sleep(60)', TORCHELASTIC_RUN_ID="x")
    ready(process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "another one died" in err
    assert time.monotonic() - began < 5


def test_term_from_elsewhere_is_a_notice_under_torchrun(start: Start) -> None:
    process = start('print("ready", flush=True); print(wait())', TORCHELASTIC_RUN_ID="x")
    ready(process)
    subprocess.run(["/bin/sh", "-c", f"kill -TERM {process.pid}"], check=True)
    out, _ = process.communicate(timeout=30)
    assert "signal='TERM'" in out


def test_other_notice_signal(start: Start) -> None:
    process = start('print("ready", flush=True); print(wait())', FSDPQ_NOTICE_SIGNALS="USR1")
    ready(process)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=30)
    assert "signal='USR1'" in out


def test_thread_that_is_older_than_the_mask_does_no_harm(start: Start) -> None:
    older = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
    code = """
signal.pthread_kill(threading.enumerate()[1].ident, signal.SIGUSR2)
print(wait())
"""
    process = start(code, head=older + HEAD)
    out, _ = process.communicate(timeout=30)
    assert "signal='USR2'" in out
    assert process.returncode == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_survive_a_signal_to_all(start: Start, tmp_path: Path, method: str) -> None:
    script = tmp_path / "children.py"
    script.write_text(
        f"""
import multiprocessing, os, signal, time
from orchestrator import runtime
def child(pipe):
    pipe.send("ready")
    pipe.recv()
    pipe.send("alive")
if __name__ == "__main__":
    run = runtime.attach()
    context = multiprocessing.get_context("{method}")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    here.recv()
    for number in (signal.SIGUSR2, signal.SIGTERM):
        os.kill(process.pid, number)
        os.kill(os.getpid(), number)
    while run.noticed() is None:
        time.sleep(0.01)
    here.send("go")
    print(here.recv() if here.poll(10) else "dead")
    process.join()
"""
    )
    process = start(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", head="")
    out, err = process.communicate(timeout=60)
    assert out == "alive\n", err


def test_worker_dies_with_its_torchrun(start: Start, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    worker = HEAD + f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {worker!r}], start_new_session=True)
time.sleep(60)
"""
    process = start(parent, head="", TORCHELASTIC_RUN_ID="x")
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker_pid = int(pid_file.read_text())
    process.kill()
    process.wait()
    while is_running(worker_pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(worker_pid)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_attaching_twice_is_one_run(start: Start) -> None:
    out, _ = start("print(runtime.attach() is run)").communicate(timeout=30)
    assert out == "True\n"


def test_attach_only_in_the_main_thread(start: Start) -> None:
    code = """
from orchestrator import runtime
import threading
def other():
    try:
        runtime.attach()
    except Exception as problem:
        print(type(problem).__name__)
thread = threading.Thread(target=other)
thread.start(); thread.join()
"""
    out, _ = start(code, head="").communicate(timeout=30)
    assert out == "RunError\n"


# -- the guard -----------------------------------------------------------------------------------


def guarded(start: Start, body: str, **variables: str) -> subprocess.Popen[str]:
    process = start(f"with runtime.guard(run):\n    {body}\nprint('after')", **variables)
    process.wait(timeout=30)
    return process


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_guard_writes_what_was_raised(start: Start, tmp_path: Path) -> None:
    torchrun_file = tmp_path / "deep" / "error.json"
    process = guarded(
        start,
        "run.heartbeat(7); 1 / 0",
        RANK="2",
        LOCAL_RANK="1",
        WORLD_SIZE="4",
        TORCHELASTIC_ERROR_FILE=str(torchrun_file),
    )
    assert process.returncode == 1
    error = read(tmp_path / "attempts/1/errors/rank-2.json")
    assert error["exception"] == "ZeroDivisionError: division by zero"
    assert (error["rank"], error["local_rank"], error["step"]) == (2, 1, 7)
    assert error["signal"] is None
    assert error["node"] == os.uname().nodename
    assert "1 / 0" in error["traceback"] or "<string>" in error["traceback"]
    status = read(tmp_path / "attempts/1/status.json")
    assert (status["outcome"], status["rank"]) == ("failed", 2)
    message = read(torchrun_file)["message"]
    assert message["message"] == error["exception"]
    assert int(message["extraInfo"]["timestamp"]) > 0


def test_guard_does_not_wait_for_threads_or_exit_handlers(start: Start) -> None:
    body = (
        "import atexit; atexit.register(time.sleep, 60);"
        " threading.Thread(target=time.sleep, args=(60,)).start(); raise ValueError('x')"
    )
    began = time.monotonic()
    assert guarded(start, body).returncode == 1
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("body", "code", "outcome"),
    [
        ("raise SystemExit(0)", 0, None),
        ("raise SystemExit", 0, None),
        ("raise SystemExit(5)", 5, "failed"),
        ("raise SystemExit('text')", 1, "failed"),
        ("raise KeyboardInterrupt", 130, "failed"),
        ("raise type('CheckpointException', (BaseException,), {})", 1, "failed"),
        ("raise runtime.SupersededError('x')", 1, "superseded"),
        ("run.resume(required=True)", 1, "no_checkpoint"),
        ("pass", 0, None),
    ],
)
def test_guard_exit_codes(
    start: Start, tmp_path: Path, body: str, code: int, outcome: str | None
) -> None:
    process = guarded(start, body)
    assert process.returncode == code
    status = tmp_path / "attempts/1/status.json"
    assert (read(status)["outcome"] if status.exists() else None) == outcome
    assert (tmp_path / "attempts/1/errors/rank-0.json").exists() == (outcome is not None)
    assert process.stdout is not None
    assert process.stdout.read() == ("after\n" if body == "pass" else "")


def test_guard_as_a_decorator(start: Start, tmp_path: Path) -> None:
    process = start("@runtime.guard(run)\ndef main():\n    1 / 0\nmain()")
    process.wait(timeout=30)
    assert process.returncode == 1
    assert (tmp_path / "attempts/1/errors/rank-0.json").exists()


def test_guard_outlives_a_missing_disk(start: Start, tmp_path: Path) -> None:
    body = "import shutil; shutil.rmtree(os.environ['FSDPQ_RUN_DIR']); 1 / 0"
    process = guarded(start, body)
    assert process.returncode == 1
    assert process.stderr is not None
    assert "ZeroDivisionError" in process.stderr.read()
