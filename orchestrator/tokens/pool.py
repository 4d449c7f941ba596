"""Worker processes, each driven by a thread: orders out, answers in. They end with this process."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from orchestrator.errors import SpecError

Order = dict[str, Any]
# An order's number, and what was answered.
Answer = tuple[int, dict[str, Any]]

_LOOK_S = 0.5
_TAIL_BYTES = 2000


def answers(
    orders: Sequence[Order], *, workers: int, python: str, stop: Callable[[], bool] = lambda: False
) -> Iterator[Answer]:
    """Yield what ``workers`` processes answer to the orders, as it comes.

    Args:
        orders: What to do; see `worker`.
        workers: How many processes, at most one for each order.
        python: The interpreter that has the packages.
        stop: Asked twice a second; all work ends once it says so.

    Raises:
        SpecError: An order came to nothing; says which and why. All work has ended then.
    """
    pool = _Pool(orders, python)
    try:
        pool.start(min(workers, len(orders)))
        yield from pool.follow(stop)
    finally:
        pool.end()


class _Pool:
    def __init__(self, orders: Sequence[Order], python: str) -> None:
        self._orders, self._python = orders, python
        self._left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(orders)):
            self._left.put(number)
        self._heard: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []
        self._ending = False

    def start(self, workers: int) -> None:
        for _ in range(workers):
            thread = threading.Thread(target=self._drive, daemon=True)
            self._threads.append(thread)
            thread.start()

    def follow(self, stop: Callable[[], bool]) -> Iterator[Answer]:
        done = 0
        while done < len(self._orders) and not stop():
            with contextlib.suppress(queue.Empty):
                number, answer = self._heard.get(timeout=_LOOK_S)
                if "error" in answer:
                    raise SpecError(answer["error"])
                done += "done" in answer
                yield number, answer

    def end(self) -> None:
        self._ending = True
        for child in self._children:
            with contextlib.suppress(OSError):
                child.kill()
        for thread in self._threads:
            thread.join()

    def _drive(self) -> None:
        with tempfile.TemporaryFile() as noise:
            number = -1
            try:
                # At the end its stdin is closed, and it ends.
                with self._spawn(noise) as child, contextlib.suppress(queue.Empty):
                    while not self._ending:
                        number = self._left.get_nowait()
                        self._order(child, number)
            except (OSError, ValueError) as problem:
                self._heard.put((number, {"error": self._died(problem, noise)}))

    def _spawn(self, noise: IO[bytes]) -> subprocess.Popen[str]:
        child = subprocess.Popen(  # noqa: S603 (a list, no shell)
            [self._python, "-m", "orchestrator.tokens.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            env=_environment(self._python),
            start_new_session=True,  # Ctrl-C is for us: we end them
        )
        self._children.append(child)
        return child

    def _order(self, child: subprocess.Popen[str], number: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(self._orders[number]) + "\n")
        child.stdin.flush()
        for line in child.stdout:
            answer = json.loads(line)
            self._heard.put((number, answer))
            if "at" not in answer:
                return
        raise ValueError(_ended(child))

    def _died(self, problem: Exception, noise: IO[bytes]) -> str:
        noise.seek(max(0, noise.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = noise.read().decode("utf-8", "replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        return f"a worker ({self._python} -m orchestrator.tokens.worker) {problem}{said}"


def _ended(child: subprocess.Popen[str]) -> str:
    code = child.wait()
    if code == -9:
        return "was killed, most likely for want of memory; use fewer --workers"
    return f"was killed by signal {-code}" if code < 0 else f"ended with {code}"


def _environment(python: str) -> dict[str, str]:
    """Return a worker's environment; this Python finds there the package that runs here."""
    if python != sys.executable:
        return dict(os.environ)
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
