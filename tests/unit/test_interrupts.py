"""Signals as an exception, and the guard that outlives a process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from orchestrator import guard
from orchestrator.interrupts import Interrupted, as_exceptions, exit_code

from .recorded_slurm import wait_for


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_raises_and_the_next_ones_do_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned = False

    def work() -> None:
        nonlocal cleaned
        with as_exceptions():
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), signal.SIGINT)
                cleaned = True

    with pytest.raises(Interrupted) as caught:
        work()
    assert (caught.value.signal, exit_code(caught.value), cleaned) == (number, 128 + number, True)
    assert signal.getsignal(number) == before


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_exceptions():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_changes_nothing() -> None:
    seen = []

    def work() -> None:
        with as_exceptions():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
    assert exit_code(KeyboardInterrupt()) == 130


@pytest.mark.processes
def test_a_guard_that_is_dismissed_does_nothing(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'echo "$0" >>"$1"', "ran", str(tmp_path / "mark")]
    with guard.unless_dismissed(argv, env=os.environ) as left:
        left.dismiss()  # which waits for its end
    assert not (tmp_path / "mark").exists()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_guard_takes_words_as_they_are(tmp_path: Path) -> None:
    word, mark = "a b; $(touch x) 'c", tmp_path / "mark"
    with guard.unless_dismissed(["sh", "-c", 'echo "$0" >"$1"', word, str(mark)], env=os.environ):
        assert not mark.exists()
    wait_for(mark)
    assert mark.read_text() == f"{word}\n"
