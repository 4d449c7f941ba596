"""`python -m tests.bench.beats`: what telling its progress costs a rank."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.rundir.limits import Limits
from orchestrator.runtime.environment import read_environment
from orchestrator.runtime.pulse import Pulse, Teller

ROUNDS = 5000


def microseconds(action: Callable[[], object]) -> float:
    """Return the mean processor time of ``action``: others may share the machine."""
    began = time.process_time()
    for _ in range(ROUNDS):
        action()
    return (time.process_time() - began) / ROUNDS * 1e6


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        env = read_environment({"FSDPQ_RUN_DIR": folder, "FSDPQ_ATTEMPT": "1"})
        pulse = Pulse(env, limits=Limits())
        teller = Teller(pulse, env, Path(folder))

        def told() -> None:
            pulse.step(1)
            teller.tell()

        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]}")
        print(f"a step, in the training thread: {microseconds(lambda: pulse.step(1)):.0f} us")
        print(f"a beat and the timer, twice a second beside it: {microseconds(told):.0f} us")
        teller._timer.stop()


if __name__ == "__main__":
    main()
