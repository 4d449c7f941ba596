"""Clocks, temperatures and slowdowns of a node's GPUs, by nvidia-smi.

A driver that is ill may keep nvidia-smi for ever, so nobody waits for it: it is started, and its
answer is taken when it is there. One that does not answer is killed and never asked again.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence

from orchestrator.rundir.node_report import Gpu

_EVERY_S = 60.0
_PATIENCE_S = 20.0
# The reasons have a new name since driver 535; the old one may go one day.
_QUESTIONS = tuple(
    (
        "nvidia-smi",
        f"--query-gpu=index,clocks.sm,temperature.gpu,{reasons}.active",
        "--format=csv,noheader,nounits",
    )
    for reasons in ("clocks_event_reasons", "clocks_throttle_reasons")
)
# Bits of the reasons that are faults; idle clocks, application settings and power caps are not.
# Source: nvml.h, nvmlClocksEventReasons.
_SLOWED = (
    (0x08, "hardware slowdown"),
    (0x20, "thermal (software)"),
    (0x40, "thermal (hardware)"),
    (0x80, "power brake"),
)


class Gpus:
    """The GPUs of a node, by the local rank that has them."""

    def __init__(
        self,
        *,
        questions: Sequence[Sequence[str]] = _QUESTIONS,
        visible: str | None = None,
    ) -> None:
        """Prepare to ask.

        Args:
            questions: Commands, of which the first that works is used.
            visible: CUDA_VISIBLE_DEVICES; this process's own, if left out.
        """
        self._questions = list(questions)
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
        self._child: subprocess.Popen[str] | None = None
        self._asked_at = float("-inf")
        self._found: dict[int, Gpu] = {}

    def look(self, now: float) -> Mapping[int, Gpu]:
        """Return what is known; asks again in the background once a minute. Never waits.

        Args:
            now: Monotonic clock, in seconds.
        """
        if self._child is not None:
            self._collect(self._child, now)
        elif self._questions and now - self._asked_at >= _EVERY_S:
            self._ask(now)
        return self._found

    def _ask(self, now: float) -> None:
        self._asked_at = now
        try:
            # A few lines at most: they fit into the pipe, so nobody has to read meanwhile.
            self._child = subprocess.Popen(  # noqa: S603  (fixed words, no shell)
                self._questions[0],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError:
            self._questions.clear()

    def _collect(self, child: subprocess.Popen[str], now: float) -> None:
        if child.poll() is None:
            if now - self._asked_at > _PATIENCE_S:
                child.kill()
                self._questions.clear()
                self._found = {}
            return
        self._child = None
        text, _ = child.communicate()
        self._found = by_local_rank(parse(text), self._visible) if child.returncode == 0 else {}
        if child.returncode != 0:
            del self._questions[:1]  # none is left after one that was killed
            self._asked_at = float("-inf")


def parse(text: str) -> dict[int, Gpu]:
    """Return the GPUs in nvidia-smi's answer by their index; lines that do not read are left out.

    >>> parse("0, 1755, 41, 0x0000000000000001")
    {0: Gpu(sm_mhz=1755.0, celsius=41.0, slowed=())}
    """
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isascii() and cells[0].isdigit():
            gpu = Gpu(sm_mhz=_float(cells[1]), celsius=_float(cells[2]), slowed=_slowed(cells[3]))
            found[int(cells[0])] = gpu
    return found


def by_local_rank(gpus: Mapping[int, Gpu], visible: str) -> dict[int, Gpu]:
    """Return the GPUs by local rank: the n-th of CUDA_VISIBLE_DEVICES, or of all there are."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if names and all(name.isascii() and name.isdigit() and int(name) in gpus for name in names):
        return {rank: gpus[int(name)] for rank, name in enumerate(names)}
    return {rank: gpus[index] for rank, index in enumerate(sorted(gpus))}


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def _slowed(text: str) -> tuple[str, ...]:
    try:
        bits = int(text, 16)
    except ValueError:
        return ()
    return tuple(word for bit, word in _SLOWED if bits & bit)
