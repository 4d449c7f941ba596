"""The scripts wait for their child, however many signals come at the same moment."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import resources

pytestmark = pytest.mark.processes

AWAIT = resources.root("templates") / "_await.sh.j2"
# The traps do what those of the scripts do: they take a while, so that the next signal finds them.
SCRIPT = """
. "$1"
caught=0
on_notice() {
  caught=1
  printf '%s %(%s)T\\n' "$1" -1 >>"$note"
  printf '%s %(%s)T\\n' "$1" -1 >>"$note"
}
note=$2
trap 'on_notice USR2' USR2
trap 'on_notice TERM' TERM
(trap '' USR2 TERM; exec sh -c "$3") &
echo ready
await "$!"
exit "$code"
"""


def _end(folder: Path, seed: int, child: str) -> int:
    rng = random.Random(seed)
    command = ["bash", "-c", SCRIPT, "await", str(AWAIT), str(folder / f"note-{seed}"), child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        time.sleep(0.1)
        for _ in range(rng.randint(2, 8)):
            script.send_signal(rng.choice([signal.SIGUSR2, signal.SIGTERM]))
            time.sleep(rng.choice([0, 0, 0.0001, 0.0005, 0.001]))
        return script.wait(60)


@pytest.mark.parametrize(
    ("child", "code"), [("sleep 1; exit 3", 3), ("sleep 1", 0), ("sleep 1; kill -KILL $$", 137)]
)
def test_signals_at_the_same_moment_end_no_wait(tmp_path: Path, child: str, code: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda seed: _end(tmp_path, seed, child), range(24)))
    assert ends == [code] * 24


@pytest.mark.parametrize("after_s", [0.08, 0.1, 0.12])
def test_signals_as_the_child_ends_are_no_other_code(tmp_path: Path, after_s: float) -> None:
    """bash may lose the code, which is 255 then; it never comes from a signal, nor too early."""

    def end(seed: int) -> tuple[int, bool]:
        over = tmp_path / f"over-{seed}"
        code = _end(tmp_path, seed, f"sleep {after_s}; : >'{over}'; exit 3")
        return code, over.exists()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(end, range(24))) <= {(3, True), (255, True)}
