"""Duties of the monitor, each in a thread of its own, so that none waits for another."""

import contextlib
import os
import threading
from collections.abc import Iterable
from typing import Protocol


class Duty(Protocol):
    """Something to do again and again. `tick` is only ever called by one thread at a time."""

    @property
    def every_s(self) -> float:
        """Seconds between the end of one tick and the next."""

    def tick(self) -> None:
        """Do it once. Whatever it raises is said once; the duty goes on."""


def start(duties: Iterable[Duty], *, stop: threading.Event) -> None:
    """Run each duty in the background until ``stop`` is set.

    The threads are daemons: one that hangs in a file system does not keep the process alive.
    """
    for duty in duties:
        name = type(duty).__name__
        try:
            threading.Thread(target=run, args=(duty, stop), name=name, daemon=True).start()
        except RuntimeError as problem:  # no more threads for this user
            say(f"{name} is left out: {problem}")


def run(duty: Duty, stop: threading.Event) -> None:
    """Let ``duty`` tick until ``stop`` is set; say each kind of failure once."""
    said: set[str] = set()
    while not stop.is_set():
        try:
            duty.tick()
        except Exception as problem:
            kind = type(problem).__name__
            if kind not in said:
                said.add(kind)
                say(f"{duty_name(duty)}: {kind}: {problem}")
        stop.wait(duty.every_s)


def duty_name(duty: Duty) -> str:
    """Return what a duty is called in messages: its own name, or that of its class."""
    return str(getattr(duty, "name", type(duty).__name__))


def say(text: str) -> None:
    """Write one line to standard error, in one write, for many nodes share it."""
    node = os.environ.get("FSDPQ_NODE", "?")
    line = f"fsdpq: node {node}: monitor: {' '.join(text.split())[:500]}\n"
    with contextlib.suppress(OSError):  # nobody may listen any more
        os.write(2, line.encode(errors="replace"))
